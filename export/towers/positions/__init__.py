"""Division of towers by the positions of sequences: what those of a context compute does not depend
on the candidate behind them.
"""
