"""A table of the launches of a step, from the output of an image with stamps (README.md).

    python3 stamps.py [STEP] < OUTPUT       # without a step: which there are

Microseconds: from the first block's begin to its turn, that is how early it started; then, counted from the first block's turn,
when the first and the last block ended; how long after the launch before it the first block had its turn, and the last ended.
"""

import sys

lines = [line.split()[1:] for line in sys.stdin if line.startswith("STAMP ")]
if len(sys.argv) < 2:
    sys.exit(f"steps: {', '.join(sorted({line[0] for line in lines}, key=int))}")
launches = [(line[1], int(line[2]), *map(int, line[3:])) for line in lines if line[0] == sys.argv[1]]
before = None
print(f"{'kernel':34} {'blocks':>6} {'early':>7} {'first':>7} {'last':>7} {'gap':>7} {'in all':>7}")
for kernel, grid, begin, _, turn, _, first, last in sorted(launches, key=lambda launch: launch[-1]):
    before = before or turn
    times = [turn - begin, first - turn, last - turn, turn - before, last - before]
    print(f"{kernel:34} {grid:6}", *(f"{ns / 1e3:7.1f}" for ns in times))
    before = last
