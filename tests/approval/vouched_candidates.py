"""Words for building commands, `sed` and `awk` programs, and attacks on the tables. Data and generators."""

from collections.abc import Iterator
from random import Random

OPERANDS: dict[str, tuple[str, ...]] = {
    "files": ("README.md", "data.csv", "src/a.py", "src/deep/b.py", "5", "1", "out", "@args"),
    "words": (".", "src", "new", "HEAD", "HEAD~0", "main", "v1", "topic", "user.name", "diff.external", "canary", "."),
    "options": ("-o", "--output=new", "-w", "--help", "--version", "-f", "new", "+!id"),
}
VALUES = (
    "5", "1", "a", "README.md", "out", "new", "HEAD", "main", "name", "1,2", "%s", "%G? %GS", "%(signature)", "canary",
    "path", "format:%G?", "never", "always", "json", "f", "@args", "src",
)  # fmt: skip

ATTACKS: tuple[str, ...] = (
    "git config --local diff.external canary", "git config --local core.fsmonitor canary",
    "git config --local --type=path filter.x.clean canary", "git config --local --null alias.x '!canary'",
    "git config --local --get diff.external canary", "git config --local edit", "git config --local --bool a.b true",
    "git log --format='%G?'", "git log --pretty=format:%GS", "git show --format=%GK",
    "git for-each-ref --format='%(signature)'",
    "git shortlog --group=format:%G?", "git branch --format='%(signature:grade)'", "git tag --format='%(signature)'",
    "git stash list --format=%G?", "git reflog --format=%G?", "git --no-pager log --format=%GF",
    "awk '{print /a/ | \"touch PWNED\"; x = 1/1}' README.md", "awk '{print /a/ > \"PWNED\" /b/}' README.md",
    "awk '{if (1) print 1; else /x/; system(\"touch PWNED\") /y/}' README.md",
    "awk 'BEGIN {print /x; /1 | \"touch PWNED\"; y = /z/}'", "awk '{for (k in /a/ b) print > \"PWNED\" /c/}' README.md",
    "awk 'function f() {return /a/ | \"touch PWNED\" /b/} {print}' README.md",
    "find . -name README.md | xargs awk '{print /a/ | \"touch PWNED\"; x = /b/}'",
    "awk '{print /1; system(\"touch PWNED\"); /1}' README.md", "awk '{x = a in /b; print > \"PWNED\"; /c}' README.md",
    "awk '{print $1 > \"PWNED\"}' README.md", "awk 'BEGIN {getline x < \"data.csv\"; print x | \"touch PWNED\"}'",
    "awk '{print | \"touch PWNED\"}' README.md", "awk '{printf \"x\" > \"PWNED\"}' README.md",
    "awk '/=/ {print} {x /= 2; print /3; system(\"touch PWNED\")}' README.md",
    "xxd -bc 5 new", "xxd -ac 5 README.md", "xxd -ug 1 new", "xxd -r -c 5 out", "xxd -i 5 new", "uniq README.md new",
    "sed 's/a/b/w PWNED' README.md", "sed 's/a/touch PWNED/e' README.md", "sed -n '1w PWNED' README.md",
    "sed 's/[/]/b/w PWNED' README.md", "sed '1e touch PWNED' README.md", "sed -e 's/[/x/' -e 's/]/x/w PWNED' README.md",
    "sed 's/a\\/b/w PWNED' README.md", "sed -n '/[/]/w PWNED' README.md", "sed 'y/a/b/;w PWNED' README.md",
    "sort -o new README.md", "sort README.md -o new", "tree -o new", "tree -R -L 1 -o new", "date -s 2020-01-01",
    "find . -fprint new", "find . -fls new", "find . -delete", "find . -exec touch PWNED ';'",
    "git diff --output=new", "git log --output new", "git log -p --output=new", "git diff --ext-diff", "git branch new",
    "git branch -l new", "git tag new", "git tag -n new", "git grep -Ocanary a", "git -c core.pager=canary log",
    "git --exec-path=. status", "git reflog expire --all", "git stash show -p", "git describe --dirty", "git status",
    "git diff", "git diff-tree -p HEAD", "git show HEAD", "git ls-files -m", "ruff check --no-fix",
    "ruff check --diff .",
    "ruff format --check .", "black --check .", "npm ls", "npm ls --all", "pip list", "pip list --outdated",
    "pip show x",
    "pip freeze", "hostname -f", "hostname -i", "less README.md", "more README.md", "less -N +!id README.md", "file -C",
    "env", "printenv", "type ls", "command -v git", "cd src && ls", "jq . package.json", "jq -n '\"x\" | modulemeta'",
    "jq -n 'input_filename, env'", "find . -type f | xargs wc -l", "find . -name '*.py' | xargs -n 1 basename",
    "find . | xargs -I{} head -1 {}", "find @args | xargs strings", "find src -type f | xargs uniq",
    "find src -type f | xargs -n 2 uniq", "gzip -l README.md", "gzip -t README.md", "gzip -v README.md", "unzip -l out",
    "find . -name README.md | xargs --max-lines touch cat", "find . -name README.md | xargs --max-lines rm cat",
    "find . -name README.md -print0 | xargs -0 --max-lines tee cat", "find . -type f | xargs --max-lines=1 wc -l",
    "git log --format=%+G?", "git log --format='% GS'", "git show --pretty=tformat:%-GG", "git reflog --format=%h%+GK",
    "git shortlog --group=format:%-G?", "git for-each-ref --sort=v:signature", "git tag --sort=-version:signature",
    "tree -Po x new", "tree -Lo 1 new", "tree -aIo x new",
    "zcat README.md", "strings @args", "od -w README.md", "shuf -o new README.md", "split README.md",
    "tail -n +2 data.csv",
    "expr 1 + 1", "printf -v x y", "test -f README.md", "[ -f README.md ]", "awk 'END{print NR}' README.md",
)  # fmt: skip
"""Forms that once passed, forms close to them, and forms of every day. What is allowed among them is run."""

_AWK_TOKENS = (
    "print", "printf", "{", "}", "(", ")", "/", "/a/", "/a", "a/", "$1", "$0", "NR", "NF", "s", "x", "+=", "++", "=",
    "==", ">", "<", ">>", "|", "||", "&&", ",", ";", "!", "~", "in", "else", "return", "if", "for", "END", "BEGIN",
    '"touch PWNED"', '"PWNED"', 'system("touch PWNED")', "getline", "1", "1>2", "seen[$0]++", "length($0)",
)  # fmt: skip
_AWK_VALUES = (
    "$1", "$NF", "$(NF-1)", "NR", "NF", "s", "sum", "5", '"touch PWNED"', '"> PWNED"', "length($0)", "FILENAME", "s/NR",
)  # fmt: skip
_AWK_TESTS = (
    "NR>1", "NR==1", "/a|b/", "!/a/", "$1 ~ /x|y/", "$2 > 1", "NF", "!seen[$0]++", "length($0) > 20", "NR%2==0",
    "/a/,/b/", '$1 == "touch PWNED"', "NR>=1 && NR<=3", "/x | y/", '/"touch PWNED"/', "END", "BEGIN", "",
)  # fmt: skip
_AWK_ACTIONS = (
    "print", "print {0}", "print {0}, {1}", "print {0} {1}", "print {0}; print {1}", "s += $1", "c[$1]++",
    'printf "%s\\n", {0}', 's += $1; print s', "for (k in c) print k, c[k]", "print {0} > {1}", "print {0} | {1}",
    "print /a/ {0}", 'FS = ","', "n++", "print {0} /{1}/",
)  # fmt: skip
_SED_TOKENS = (
    "1", "$", ",", "/a/", "/[a-z]/", "/[/]/", "!", "p", "d", "q", "=", ";", "s/a/b/", "s|a|b|g", "s/a/b/w PWNED",
    "w PWNED",
    "e touch PWNED", "s/a/touch PWNED/e", "s,[a,],b,", "\n", " ", "{", "}", "r README.md", "n", "N", "x", "2~3", "+1",
    "\\", "[", "]", "/", "I", "g", "s#a\\#b#c#", "s/\\[/x/", "y/a/b/",
)  # fmt: skip


def generate_awk(random: Random) -> Iterator[str]:
    """Generate programs: half of them in common forms, half of random tokens."""
    while True:
        if random.random() < 0.5:
            yield random.choice(("", " ")).join(random.choices(_AWK_TOKENS, k=random.randint(1, 8)))
            continue
        rules: list[str] = []
        for _ in range(random.choice((1, 1, 2))):
            action = random.choice(_AWK_ACTIONS).format(*random.choices(_AWK_VALUES, k=2))
            test = random.choice(_AWK_TESTS)
            rules.append(
                f"{test} {{{action}}}" if random.random() < 0.8 or test in ("", "END", "BEGIN") else f"{test};"
            )
        yield " ".join(rules).rstrip(";")


def generate_sed(random: Random) -> Iterator[str]:
    """Generate programs of random tokens."""
    while True:
        yield "".join(random.choices(_SED_TOKENS, k=random.randint(1, 5)))
