"""The scheduler `local_cwd`: jobs as processes of this machine.

May use: the modules of schedulers/ itself, no other room.
"""
