"""Program + torch stages -> Timeline: the only package that imports torch.

Nothing here is imported before `--execute`, `calibrate` or `record` asks for it,
and of its modules only options.py and launch.py do without torch: the process
that starts the ranks and watches over them needs none.
"""
