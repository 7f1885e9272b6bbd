"""The command line: print a forecast for one station."""

import argparse
import sys

from tidewatch.forecast import Constituent, tide

DEMO = (Constituent(2.05, 28.984, 139.0), Constituent(0.75, 30.0, 178.0))


def main() -> int:
    """Print the height of the tide for each of the next hours."""
    parser = argparse.ArgumentParser(prog="tidewatch")
    parser.add_argument("station")
    parser.add_argument("--hours", type=int, default=12)
    options = parser.parse_args()
    # TODO: read the harmonic constants of the station instead of these
    for hour in range(options.hours):
        sys.stdout.write(f"{options.station} +{hour:02}h {tide(DEMO, hour):6.2f} m\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
