#!/usr/bin/env bash
# Trains the reference ensembles, the most useful first. Stop it at any time; the same command resumes.
#   nice -n 19 bash results/train-references.sh [ADP_BENCH [OUT]]     ADP_BENCH: the program; OUT: default results/ensembles
# A finished ensemble is skipped. About 50 minutes an ensemble of CIFAR-10 on two cores with AVX512-BF16.
set -u
bench=${1:-adp-bench}
out=${2:-results/ensembles}
mkdir -p "$out"

train() { # train NAME DEFENSE DATASET [OPTION…]
  local name=$1 defense=$2 dataset=$3
  shift 3
  [ -e "$out/$name/done" ] && return
  echo "$(date -u +%FT%TZ) start $name" >> "$out/queue.log"
  $bench train "$defense" --dataset "$dataset" --recipe reference --watch test --out "$out/$name" "$@" \
    && touch "$out/$name/done"
  echo "$(date -u +%FT%TZ) end $name: $?" >> "$out/queue.log"
}

for seed in 0 1 2; do
  for defense in baseline adp-2-0.5 label-smoothing-0.6 adp-2-0; do
    train "cifar10-$defense-seed$seed" "$defense" cifar10 --seed "$seed"
  done
done
train cifar10-surrogate baseline cifar10 --seed 1000
# adversarial training, all 50,000 images, started from the ensembles of seed 0
for start in baseline adp-2-0.5; do
  plus=${start/baseline/}
  train "cifar10-advt-fgsm-$start" "advt-fgsm${plus:++$plus}" cifar10 --epochs 8 --start-from "$out/cifar10-$start-seed0"
  train "cifar10-advt-pgd-$start" "advt-pgd${plus:++$plus}" cifar10 --epochs 4 --start-from "$out/cifar10-$start-seed0"
done
for seed in 0 1 2; do
  for defense in baseline adp-2-0.5 label-smoothing-0.6 adp-2-0; do
    train "mnist-$defense-seed$seed" "$defense" mnist --seed "$seed"
  done
done
# 0.37 and 0.754 are the confidences that Theorem 2 gives for K = 3, L = 100 and for K = 5, L = 10 at alpha = 2
for defense in baseline adp-2-0.5 label-smoothing-0.37 "adp(alpha=2,beta=0.5,temperature=10)"; do
  train "cifar100-${defense//[^a-z0-9.-]/-}-seed0" "$defense" cifar100
done
for defense in baseline adp-2-0.5 label-smoothing-0.754; do
  train "cifar10-k5-$defense-seed0" "$defense" cifar10 --members 5
done
