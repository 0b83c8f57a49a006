"""Numbers from 1 on, of which an option takes one: several are swept."""

from __future__ import annotations

from typing import Any

import click


class Count(click.IntRange):
    """A number; of several it is said how they are swept."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parts = str(value).replace("..", ",").split(",")
        if param is not None and len(parts) > 1 and parts[0].strip().isdecimal():
            swept = f"--sweep {param.opts[0].lstrip('-')}={value}"
            if ctx is None or ctx.command.name != "compare":
                swept = f"tracegen compare {swept}"
            self.fail(f"{value!r} is not one number; several are swept: {swept}", param)
        return super().convert(value, param, ctx)


COUNT = Count(min=1)
