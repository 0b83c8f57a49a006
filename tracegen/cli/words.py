"""What the field's other words are called here: a hint where an option or command is not known."""

from __future__ import annotations

import click

# an option here -> what Megatron-LM, DeepSpeed, PyTorch and papers call it
CALLED = {
    "-p": "pp pp-size pp-degree pipeline-model-parallel-size pipeline-parallel-size "
    "pipeline-parallel-degree num-ranks nranks world-size",
    "-m": "num-microbatches num-micro-batches n-microbatches mb gradient-accumulation-steps",
    "-v": "vpp vp vpp-size virtual-pipeline-model-parallel-size num-virtual-stages "
    "num-model-chunks model-chunks num-chunks chunks",
    "--model-layers": "num-layers n-layers layers",
    "--hidden": "hidden-size hidden-dim d-model",
    "--seq": "seq-length seq-len sequence-length",
    "--heads": "num-attention-heads num-heads n-heads",
    "--vocab": "vocab-size padded-vocab-size",
    "--microbatch-size": "micro-batch-size mbs",
    "--tensor": "tp tp-size tensor-model-parallel-size tensor-parallel-size",
    "--data": "dp dp-size data-parallel-size",
    "--recompute": "recompute-granularity activation-checkpointing",
    "--schedule": "schedules pipeline-schedule",
}
HERE = {word: option for option, words in CALLED.items() for word in words.split()}
MEANT = {
    "num-stages": "-p is the ranks, -v the stages of each",
    "global-batch-size": "-m is the microbatches of a step",
    "num-layers-per-virtual-pipeline-stage": "-v is the stages of a rank",
}
MODEL = (
    "a model's sizes go to `tracegen compare`, whose --save-costs writes a file for --costs; "
    "--execute has sizes of its own"
)


def option_hint(error: click.NoSuchOption) -> str:
    """What to use instead of an option that the command does not have; empty if unknown."""
    if error.ctx is None:
        return ""
    command, word = error.ctx.command, error.option_name.lstrip("-").replace("_", "-")
    if isinstance(command, click.Group):
        return "options follow a command, as in `tracegen run --schedule NAME`"
    has = {name: param for param in command.params for name in param.opts}
    if word in ("s", "schedule") and any(one.startswith("schedule") for one in has):
        return f"the schedule stands by itself: `tracegen {command.name} NAME`"
    wanted = HERE.get(word, f"--{word}")
    if wanted in has:
        return f"here it is {' or '.join(has[wanted].opts)}"
    if wanted in CALLED and wanted not in ("-p", "-m", "-v", "--schedule") and "--costs" in has:
        return MODEL if "--execute" in has else MODEL.partition(";")[0]
    meant = MEANT.get(word, "")
    return meant if meant.partition(" ")[0] in has else ""


def command_hint(name: str) -> str:
    """What to say to one who gives a schedule or a file, or asks for help, as if by a command."""
    from tracegen import registry
    from tracegen.cli.common import SCHEDULES, TRACES
    from tracegen.errors import UnknownSchedule

    if name == "help":
        return "`tracegen --help` lists all, `tracegen COMMAND --help` says what each takes"
    if name.endswith(TRACES):
        return f"of a trace: `tracegen open {name}`, `tracegen show {name}`"
    if not name.endswith(SCHEDULES):
        try:
            name = registry.find(name).name
        except UnknownSchedule:
            return ""
    return f"of a schedule: `tracegen run --schedule {name}`"
