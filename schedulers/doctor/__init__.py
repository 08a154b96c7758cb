"""`torchx doctor`: checks of this machine and of the clusters that it reaches.

May use: nothing of schedulers/ outside this room.
"""
