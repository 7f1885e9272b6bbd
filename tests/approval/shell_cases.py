"""Commands that try to exceed their rule, by class, and everyday commands. Data only."""

BYPASSES: dict[str, tuple[str, ...]] = {
    "chaining": (
        "git status; touch PWNED", "git status && touch PWNED", "git status || touch PWNED",
        "git status & touch PWNED", "git status | touch PWNED", "git status |& touch PWNED", "ls;touch PWNED",
        "ls&&touch PWNED", "ls&touch PWNED", "ls|sh", "pytest | tee PWNED", "pytest -q; rm -rf src",
        "git status ; ; touch PWNED", "ls ;; touch PWNED", "ls; ls; ls; touch PWNED", "ls && ls || touch PWNED",
        "touch PWNED; ls", "touch PWNED && git status",
    ),
    "substitution": (
        "git status $(touch PWNED)", "git status `touch PWNED`", 'git status "$(touch PWNED)"', 'ls "`touch PWNED`"',
        "ls $(echo $(touch PWNED))", "ls ${x:-$(touch PWNED)}", "ls $((`touch PWNED`))", "ls $[$(touch PWNED)]",
        "pytest -k $(touch PWNED)", 'ls "${x=`touch PWNED`}"', "git status ${IFS}", "ls $'\\x24(touch PWNED)'",
        "ls ${x@P}", "ls ${!x}",
    ),
    "newlines": (
        "git status\ntouch PWNED", "git status\r\ntouch PWNED", "ls\n\n\ntouch PWNED", "ls\rtouch PWNED",
        "git \\\nstatus; touch PWNED", "ls \\\n-la", "pytest\n-q\ntouch PWNED", "ls\x0btouch PWNED", "ls\x0ctouch",
        "ls\u2028touch PWNED", "ls\x85touch PWNED", "ls\x00; touch PWNED",
    ),
    "comments": (
        "ls # harmless\ntouch PWNED", "git status #; touch PWNED", "ls #", "ls;#\ntouch PWNED",
        "touch PWNED # git status", "# git status\ntouch PWNED",
    ),
    "environment": (
        "env git status", "env -S 'touch PWNED' ls", "PATH=. ls", "LD_PRELOAD=./x.so ls",
        "GIT_PAGER=touch git status", "GIT_EXTERNAL_DIFF='touch PWNED' git diff", "BASH_ENV=./x ls", "X=1 Y=2 ls",
        "export PATH=.; ls", "BASH_ENV=x bash -c ls", "ENV=./x sh", "PYTEST_ADDOPTS=-pevil pytest",
        "PYTHONPATH=. pytest", "IFS=x ls", "PROMPT_COMMAND='touch PWNED' ls", "GIT_CONFIG_COUNT=1 git status",
        "a+=b ls", "a[0]=b ls",
    ),
    "runners": (
        "sh -c 'ls; touch PWNED'", "bash -c ls", "bash ls", "xargs ls", "ls | xargs touch", "nice ls", "nohup ls",
        "timeout 5 touch PWNED", "time ls", "exec ls", "command touch PWNED", "builtin eval 'touch PWNED'", "eval ls",
        "eval git status", "sudo ls", "su -c ls", "busybox touch PWNED", "stdbuf -o0 touch PWNED",
        'python -c \'open("PWNED","w")\'', "python3 -m http.server", "perl -e 'system(q(touch PWNED))'",
        'awk \'BEGIN{system("touch PWNED")}\'', "sed -n '1e touch PWNED' x",
        "tar cf /dev/null x --checkpoint-action=exec=sh", "ssh localhost touch PWNED", "make -f evil.mk", "watch ls",
        "script -c 'touch PWNED'", "source ./ls", ". ./ls", "vim -c '!touch PWNED'",
        "man -P 'touch PWNED' ls", "node -e 1", "trap 'touch PWNED' EXIT", "setsid ls", "unshare ls",
        "flock x touch PWNED", "ld.so ./x", "git-status",
    ),
    "options of find": (
        "find . -exec touch PWNED ';'", "find . -execdir touch PWNED '+'", "find . -delete",
        "find . -ok touch '{}' ';'", "find . -fprint PWNED", "find . -fprintf PWNED x", "find . -fls PWNED",
        "find . -name x -o -exec touch PWNED ';'", "find . -- -exec touch PWNED ';'", "find -files0-from x",
        "find . -ex\\ec touch PWNED ';'", "find . {-exec,touch,PWNED,';'}",
    ),
    "options of git": (
        "git -c core.pager=x status", "git -c alias.status='!touch PWNED' status", "git --exec-path=. status",
        "git -C /tmp/evil status", "git --git-dir=/tmp/evil status", "git --work-tree=/ status", "git -p status",
        "git --config-env=core.pager=X status", "git log --output=PWNED", "git diff --output PWNED",
        "git diff -O/x --ext-diff", "git diff --no-index /dev/null /etc/passwd", "git diff /dev/null /etc/passwd",
        "git grep -O'touch PWNED' x", "git grep --open-files-in-pager=x y", "git show --textconv HEAD:x",
        "git log --outp=PWNED", "git branch -D main", "git branch evil", "git tag evil", "git config core.pager x",
        "git config --add a.b c", "git remote add x y", "git ls-remote --upload-pack=x .",
        "git fetch --upload-pack='touch PWNED' .", "git clone ext::sh x", "git bisect run touch PWNED",
        "git rebase -x 'touch PWNED' HEAD~1", "git submodule foreach 'touch PWNED'", "git difftool -x touch",
        "git help status", "git archive --exec=x -o PWNED HEAD", "git reflog expire --all",
        "git status --no-such-option=x", "git log -n --output=PWNED", "git cat-file --filters HEAD:x",
        "git push --receive-pack=x origin", "git blame --contents /etc/passwd x", "git apply x", "git",
    ),
    "options of others": (
        "sort -o PWNED x", "sort --compress-program=touch x", "sort --output=PWNED x", "sort -T / x", "uniq a PWNED",
        "tree -o PWNED", "rg --pre touch x", "rg -z x", "grep -f /etc/shadow x", "date -s 2020-01-01",
        "date 01010000", "hostname evil", "tail -f x", "file -C -m x", "diff -l a b",
        "jq -n --rawfile a /etc/passwd .", "sort --out=PWNED x", "date -f /etc/shadow",
        "wc --files0-from=/etc/passwd",
    ),
    "builtins that evaluate": (
        "test -v 'a[$(touch PWNED)]'", "test 'a[$(touch PWNED)]' -eq 1", "printf -v 'a[$(touch PWNED)]' x",
        "test -R x", "let 'a[$(touch PWNED)]'", "unset 'a[$(touch PWNED)]'", "wait -p 'a[$(touch PWNED)]'",
    ),
    "options of pytest": (
        "pytest -p evil", "pytest -c /tmp/evil.ini", "pytest --rootdir=/tmp", "pytest -o addopts=-pevil",
        "pytest @/tmp/args", "pytest --basetemp=/home", "pytest --junitxml=/tmp/x", "pytest --pdbcls=evil:X",
        "pytest --pastebin=all", "pytest --override-ini=x=y", "pytest --confcutdir=/", "pytest ../elsewhere",
        "pytest /tmp/evil", "pytest -W error::evil.X", "pytest --import-mode=importlib", "pytest -qp evil",
        "pytest --pyargs evil", "pytest --log-file=PWNED", "pytest --config-file=/tmp/x", "pytest -k x -p evil",
    ),
    "quoting": (
        "ls $'\\x3b' $'touch\\x20PWNED'", 'ls $"x"', "l\\s; touch PWNED", "git\\ status", "'git status'; touch PWNED",
        '"git status"', "'ls;touch PWNED'", "git 'status; touch PWNED", 'git "status', "ls 'a'\\''b'", 'ls "a\\"b"',
        'g\'\'it sta""tus; touch PWNED', "\\ls", "'ls\n'", "git status'",
    ),
    "here-documents": (
        "ls <<EOF\nEOF\ntouch PWNED", "git status <<<x", "sh <<< 'touch PWNED'", "ls <<-X\nX",
        "cat <<'E' > PWNED\nx\nE",
    ),
    "redirection": (
        "ls > PWNED", "ls >> PWNED", "ls 2> PWNED", "ls &> PWNED", "ls >| PWNED", "ls <> PWNED",
        "git status < ../x", "cat < /etc/shadow",
        "ls >&PWNED", "ls 2>&1 > PWNED", "ls > /dev/null/../../PWNED", "ls >/dev/nullx", "ls 3>&1", "ls 2>&-",
        "ls {fd}>PWNED", "ls >/dev/tcp/127.0.0.1/80", "> PWNED ls", "ls 12>&1",
    ),
    "process substitution": (
        "ls <(touch PWNED)", "ls >(touch PWNED)", "git status =(touch PWNED)", "cat <(ls)",
    ),
    "globs and braces": (
        "/bin/l? -la", "l* -la", "/usr/bin/t[o]uch PWNED", "{ls,-la}", "{touch,PWNED}", "ls {a,b}",
        "git status @(a|b)", "gi{t,t} status", "ls ~", "ls ~root", "ls ~+/x", "ls a=~",
    ),
    "compound": (
        "(touch PWNED)", "(ls)", "{ ls; touch PWNED; }", "if ls; then touch PWNED; fi",
        "while ls; do touch PWNED; done", "for x in 1; do ls; done", "case x in *) ls;; esac", "! ls",
        "[[ -f x ]] && ls", "((x++))", "select x in y; do ls; done", "until ls; do :; done", "coproc ls",
        "time -p ls", "ls() { touch PWNED; }; ls", "function ls { touch PWNED; }; ls",
        "function git { touch PWNED; }\ngit status", "git() (touch PWNED); git status", "then ls",
    ),
    "aliases and builtins": (
        "alias ls='touch PWNED'; ls", "shopt -s expand_aliases; ls", "set -x; ls", "enable -f ./x.so y",
        "hash -p ./evil ls; ls", "declare -x PATH=.; ls", "readonly x; ls", "unset PATH; ls",
        "mapfile -C 'touch PWNED' x", "printf -v x y; eval ls", "read x; ls", "type ls; touch PWNED",
        "complete -C 'touch PWNED' x", "bind -x x", "ulimit -c 0; touch PWNED",
    ),
    "path tricks": (
        "./ls", "/tmp/evil/git status", "../git status", "./git status", "/bin/../tmp/git status", "bin/ls",
        "//tmp/ls", "./pytest", "/usr/bin/env ls", "/bin/sh -c ls", "git/ status", ".git/hooks/x", "cat /etc/shadow",
        "cat ../../x", "cd /etc && cat passwd", "cd .. && cat x", "cd sub && cat ../../x", "cd - && ls", "cd",
        "head -c 10 /proc/1/environ", "grep -e x /etc/shadow", "cat src/../../x",
    ),
    "files and code by the back door": (
        "jq -n 'import \"creds\" as $d {search: \"/home\"}; $d'", "jq 'include \"x\" {search: \"/etc\"}; .' a.json",
        "jq -n -r 'import \"../../x\" as x; x'", "grep -R needle .", "grep -nR needle", "rg -L needle",
        "rg --follow needle", "rg -nL needle src", "diff -r a b", "diff -ru a b", "diff --recursive a b",
    ),
    "other letters": (
        "l\u0455", "git\xa0status", "\uff47it status", "ls \u202egnp.exe", "git \u200bstatus", "ls\u3000-la",
        "ls \u037e touch PWNED", "ls \uff1b touch PWNED", "ls \ud83d\ude00",
    ),
    "word ends": (
        "gitstatus", "git statusx", "git status-all", "lsof", "ls-la", "pytester", "pytest-evil", "lsblk -o x",
        "git stash drop", "git sta", "GIT status", "LS",
    ),
    "too much": (
        "ls " + "a " * 20_000, "ls" + "; ls" * 60, "", "   ", ";", "&&", "|", "ls &&", "ls |", "&& ls", "| ls",
    ),
}  # fmt: skip
"""None of these is allowed by rules for `git …`, `ls`, `pytest` and other readers."""

READERS = (
    "test", "printf", "git status", "git log", "git diff", "git", "ls", "pytest", "cat", "find", "grep", "rg", "sort",
    "uniq", "head", "tail", "wc", "echo", "tree", "date", "hostname", "file", "diff", "jq", "cd",
)  # fmt: skip
"""Prefixes that rules of the tests allow."""

EVERYDAY: dict[str, tuple[str, ...]] = {
    "allow": (
        "test -f README.md", "test -d src && ls src", "printf '%s\\n' a b", "git status", "git status -s",
        "git status --porcelain=v1 -uno", "git  status", "git status -- src", "'git' status", "git log",
        "git log --oneline -5", "git log -n 3 --format='%h %s'", "git log --since='2 weeks ago' --author=ada",
        "git log --graph --all --decorate", "git log -p -- src/a.py", "git log main..feature",
        "git log --stat HEAD~3..HEAD", "git diff", "git diff --stat", "git diff HEAD~1 -- src", "git diff --cached",
        "git diff main...feature --name-only", "git show HEAD", "git show HEAD~2:src/a.py",
        "git show --stat stash@{0}", "git branch", "git branch -a", "git branch -vv", "git branch --show-current",
        "git branch --merged main", "git rev-parse HEAD", "git rev-parse --show-toplevel", "git ls-files",
        "git ls-files -m src", "git blame -L 1,20 src/a.py", "git remote -v", "git tag --list 'v*'", "git stash list",
        "git describe --tags --always", "git config --get user.name", "git --no-pager log -3", "git shortlog -sn",
        "git grep -n needle -- src", "git --version", "git reflog -5", "ls", "ls -la", "ls -lah src tests",
        "ls -1 --sort=time", "ls /usr/lib", "ls ..", "pytest", "pytest -q", "pytest -x -q tests",
        "pytest tests/test_a.py::test_b -v", "pytest -k 'a and not b' --tb=short", "pytest -n 4 --maxfail=1 -ra",
        "pytest --lf", "pytest -q 2>&1", "pytest -q 2>&1 | tail -20", "cat README.md", "cat -n src/a.py src/b.py",
        "cat ./docs/../README.md", "head -20 README.md", "head -n 5 a", "tail -n 50 log.txt", "wc -l src/a.py",
        "grep -rn needle src", "grep -i 'a b' x", "grep -E 'a|b\\.c' src/a.py", "rg -n needle",
        "rg -t py 'def \\w+' src", "find . -name '*.py' -type f", "sort -u names.txt",
        "find src -maxdepth 2 -not -path './x/*'", "sort names.txt | uniq -c | sort -rn | head -5", "echo hello",
        "echo 'hello; world'", 'echo "a && b"', "git log | head -5", "git status && git diff", "git status; ls",
        "cd src && ls -la", "ls nope 2>/dev/null || echo none", "ls >/dev/null",
        "diff -u a.txt b.txt", "diff -ru --no-dereference a b", "tree -L 2", "date +%F", "jq -r .name package.json",
        "cat a.json | jq '.items | length'", "file src/a.bin", "git log --grep='fix: x'",
    ),
    "ask": (
        "printf -x", "rm -rf build", "git push", "git commit -m 'x'", "git checkout main", "git reset --hard",
        "git clean -fd", "npm install", "pip install requests", "curl https://example.org", "make", "make test",
        "python script.py", "python -c 'print(1)'", "docker ps", "kill 1", "chmod +x a.sh", "./run.sh", "mv a b",
        "cp a b", "mkdir x", "touch x", "sed -i s/a/b/ x", "echo hi > x", "cat a >> b",
        "for x in a b; do echo hi; done", "cat ~/.ssh/id_rsa", "cat /etc/passwd", "git log | less", "ls | xargs rm",
        "find . -name x -delete", "sudo ls", "npm test", "cargo build", "tail -f log.txt", "git stash", "git fetch",
        "cat <<EOF\nhi\nEOF", "sleep 100 &", "cd src && pytest -q",
    ),
}  # fmt: skip
"""Judged by the same rules."""

BEYOND_LOOKING: tuple[str, ...] = (
    "sed -i s/a/b/ README.md", "sed 's/a/b/w out' README.md", "sed '1e touch x' README.md", "sed -f x.sed README.md",
    "sed 1r/etc/passwd README.md", "awk 'BEGIN{system(\"id\")}'", "awk '{print > \"out\"}' data.csv",
    "awk '{print | \"sh\"}' data.csv", "awk -f x.awk data.csv",
    "awk 'BEGIN{ARGV[1]=\"/etc/passwd\"; ARGC=2} {print}'", "find . | xargs rm", "find . | xargs sh -c x",
    "ls | xargs cat", "find / -name passwd | xargs cat", "find . -printf '/etc/passwd\\n' | xargs cat",
    "find . | xargs -a x cat", "cat < /etc/passwd", "cat < ../x", "cat $HOME/.netrc", "cat ../*", "ls | sh", "sh < x",
    "env -i sh", "env x=1 ls", "less +!id README.md", "cd $HOME && cat .netrc", "cd $TMPDIR && ls", "echo $SECRET",
    "ls > out", "find . | xargs --max-lines rm cat", "find . -print0 | xargs -0 --max-lines tee cat",
    "find . | xargs -n touch cat", "git log --format=%+G?", "git log --format='% G?'", "git show --pretty=tformat:%-GG",
    "git shortlog --group=format:%+G?", "git for-each-ref --sort=v:signature", "git branch --sort=-version:signature",
    "tree -Po x out", "tree -Lo 1 out", "tree -aIo x out",
)  # fmt: skip
"""Forms of programs that often only look, which do more: a rule that allows the shell does not reach them."""
