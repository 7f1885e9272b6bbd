"""Formats of amounts for people: tokens, costs, durations, counts. JSON has plain numbers instead. Pure."""


def format_tokens(count: int) -> str:
    """Format a number of tokens: `410`, `12.3k`, `1.2M`."""
    if count < 1_000:
        return str(count)
    # From here on, one decimal would round to `1000.0k`.
    if count < 999_950:
        return f"{count / 1_000:.1f}k"
    return f"{count / 1_000_000:.1f}M"


def format_cost(cost_usd: float | None) -> str:
    """Format a cost: `$0.021`, with more decimals for small amounts. None is `cost unknown`."""
    if cost_usd is None:
        return "cost unknown"
    if cost_usd >= 1:
        return f"${cost_usd:,.2f}"
    if cost_usd >= 0.001 or cost_usd <= 0:
        return f"${cost_usd:.3f}"
    # As many decimals as the first digit needs: three would show a cheap call as free.
    zeros = len(f"{cost_usd:.12f}".partition(".")[2]) - len(f"{cost_usd:.12f}".partition(".")[2].lstrip("0"))
    return f"${cost_usd:.{min(9, zeros + 1)}f}"


def format_seconds(seconds: float) -> str:
    """Format a duration: `0.2 s`, `14 s`, `2 min 5 s`, `1 h 3 min`."""
    # From here on, one decimal would round to `10.0`.
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def format_age(seconds: float) -> str:
    """Format an age: `now`, `5 min`, `3 h`, `2 d`."""
    minutes = max(0, int(seconds)) // 60
    if minutes < 60:
        return f"{minutes} min" if minutes else "now"
    return f"{minutes // 60} h" if minutes < 24 * 60 else f"{minutes // (24 * 60):,} d"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: `1 run`, `2,000 runs`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
