"""The short display of a result of `evaluate`: the accuracies first, without bookkeeping columns."""

from __future__ import annotations

import pandas as pd

from benchmark.findings.rows import COLUMNS


class ResultTable(pd.DataFrame):
    """A data frame with the columns of table.csv and a short display; data frames made from it are plain."""

    def short(self) -> pd.DataFrame:
        """Accuracy with its interval, attack, tier, clean accuracy, images and flags."""
        parameters = self["parameters"].map(lambda text: f"({text})" if text else "")
        return pd.DataFrame(
            {
                "accuracy": self["accuracy"],
                "95 % interval": [
                    f"{low:.2f} to {high:.2f}" if pd.notna(low) else ""
                    for low, high in zip(self["ci_low"], self["ci_high"], strict=True)
                ],
                "attack": self["attack"] + parameters,
                "tier": self["tier"],
                "clean": self["clean_accuracy"],
                "images": self["samples"],
                "flags": self["flags"],
            }
        )

    @property
    def _whole(self) -> bool:
        """True if no column was removed."""
        return set(COLUMNS) <= set(self.columns)

    def __repr__(self) -> str:
        if not self._whole:
            return super().__repr__()
        with pd.option_context("display.width", 160, "display.max_columns", None, "display.max_colwidth", 60):
            return f"{self.short()!r}\n{MORE.format(len(self.columns))}"

    def _repr_html_(self) -> str | None:
        if not self._whole:
            return super()._repr_html_()  # type: ignore[misc]
        return f"{self.short().to_html(float_format='{:.2f}'.format, na_rep='')}<p>{MORE.format(len(self.columns))}</p>"


MORE = "accuracies in percent; a data frame of {} columns, see .columns"
