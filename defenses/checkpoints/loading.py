"""Load a trained ensemble, whoever made it, and check that it is the one expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from defenses.checkpoints.outside import load_foreign
from defenses.checkpoints.own import FILE_NAME, is_own, load_own
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble


def load_checkpoint(spec: str | Path, *, trust: bool = False, **expected: Any) -> Ensemble:
    """An ensemble in evaluation mode, with its origin in ``ensemble.provenance``.

    ``spec`` is a ``.safetensors`` file of this project or the folder that holds one, or a model from outside: a file
    in DVERGE's format, ``file.pt:network``, several files with commas, a TorchScript or torch.export program,
    ``file.py:function``, or ``pyautoattack:resnet18`` (docs/checkpoints.md). Programs can run code when they are
    loaded, so they need ``trust=True``. Keyword arguments name fields of
    `Provenance` that must have the given value; weights that do not know their images take ``shape`` and ``classes``
    from them, and a model that does not know its dataset is taken for any.
    """
    path = Path(spec) / FILE_NAME if Path(spec).is_dir() else Path(spec)
    if is_own(path):
        ensemble = load_own(path)
    else:
        ensemble = load_foreign(str(spec), expected.get("shape"), expected.get("classes"), trust)
    for name, value in expected.items():
        found = getattr(ensemble.provenance, name)
        if found != value and name == "defense_digest":
            raise BadInput(
                f"{spec} was trained with another version of the defense's file; to train it again, delete its folder"
            )
        if found != value and not (name == "dataset" and not found):
            raise BadInput(f"{spec} has {name} {found!r}, not {value!r}; give a checkpoint that fits or train one")
    return ensemble.eval()
