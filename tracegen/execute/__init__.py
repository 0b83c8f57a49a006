"""Program + torch stages -> Timeline: the only package that imports torch.

Nothing here is imported before `--execute`, `calibrate` or `record` asks for it,
and of its modules options.py and launch.py do without torch, since the process
that starts the ranks and watches over them needs none, and record.py.
"""
