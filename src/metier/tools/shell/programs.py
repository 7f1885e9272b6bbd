"""Facts about programs: harmless arguments, and programs that run others. Data only.

A table allows only the arguments that it lists. Its words:

    -la          the short options `-l` and `-a`, alone or combined
    -n:          a short option with a value, attached or as the next word
    --all        a long option without a value;  --max=  with a value;  --color?  with a value after `=`, or without
    -#           a number as an option, as in `head -20`
    -name! -run= long options with one dash (`find`, `go`): with the next word as the value; with `=` or the next word
    -L!          a short option whose value is always the next word, while more options follow in this one (`tree`)
    :paths :words :none :pattern   the operands: files, any words, none, or any word and then files
    :keys        every operand is the name of a setting, such as `user.name`
    :most=1      the maximum number of operands
    :needs=--get one of these options is required
    :acts        it changes the workspace or runs its code: an allow rule must name the command, not only the program
    :any         any arguments
    :plain       names without `:` and blanks;  :plus  words that start with `+`
    :remote      as `:plain`, but the first is `origin` or `upstream`: another word may be a path to a repository
    :among=a,b   only these words
    :nofiles     no operand starts with `@`;  :nobrackets  none has a `[`;  :noimports  none imports another file
    :sed :awk    the first operand, or the value of `-e`, is a program of a known form; the rest are files
    :noplus      no operand starts with `+`;  :nosignatures  no format asks for a signature, which starts gpg
    :single      long options have one dash;  :grouping  `(`, `)` and `!` may occur between them
"""

# Left out on purpose: options that write files (`sort -o`, `tree -o`), start programs (`find -exec`, `rg --pre`, `git
# grep -O`, `sort --compress-program`) or act (`find -delete`, `date -s`). `diff -r` follows links, so it is allowed
# only with `--no-dereference`.
TABLES = """
cd = :paths :most=1
env = :none
printenv = -0 :words
ps = :any
free = -bkmghtw --human --mega --giga --total --wide :none
pgrep = -acflnovx -u: -U: -P: -g: -t: --list-name --list-full --full --exact --newest --oldest --count :words
lscpu = -ae --all --json :none
locale = -a :none
groups = :words
cal = -137my :words
command = -vV :words :needs=-v,-V
type = -aptP :words
echo = :any
printf = :words
true = :any
false = :any
test = -b -c -d -e -f -g -h -k -L -n -O -p -r -s -S -u -w -x -z -eq -ne -lt -le -gt -ge -nt -ot -ef -a -o :single
    :grouping :words :nobrackets
expr = :any
basename = :any
dirname = :any
seq = :any
sleep = :words
pwd = -LP :none
whoami = :none --version
id = -ugGnr :words
uname = -asnrvmpio --all :none
hostname = -s --short :none
date = -uR -I? --utc -d: --date= --iso-8601? --rfc-3339= -r: :plus
uptime = -ps :none
nproc = --all :none
arch = :none
which = -as :words
ls = -aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1 -w: -T: -I: --all --almost-all --author --block-size= --color? --classify?
    --directory --full-time --group-directories-first --human-readable --ignore= --hide= --inode --no-group
    --numeric-uid-gid --recursive --reverse --size --sort= --time= --time-style= --hyperlink? --format= :words
tree = -adfghilnpqrstuxACDFJNQSX -L! -I! -P! --dirsfirst --noreport --gitignore --prune --du --si :words
stat = -fLt -c: --format= --printf= --dereference --file-system --terse :words
du = -abchklmsxSHLD0 -d: --max-depth= --all --apparent-size --human-readable --summarize --total --exclude=
    --threshold= -t: --time? :words
df = -ahHiklPT -t: -x: -B: --human-readable --all --inodes --print-type --total :words
file = -bhikLNnr0 --brief --mime --mime-type --mime-encoding --dereference :paths
readlink = -femnqsvz --canonicalize :words
realpath = -emLPqsz --relative-to= --relative-base= :words
cat = -AbeEnstTuv --number --show-all --show-ends --show-tabs --number-nonblank --squeeze-blank :paths
tac = -b :paths
less = -#eEFiIMmnNqQrRsSwWX --quit-if-one-screen --raw-control-chars --LINE-NUMBERS --chop-long-lines --no-init :paths
    :noplus
more = -#cdflpsu :paths :noplus
sed = -nErsuz -e: --quiet --silent --regexp-extended --separate --unbuffered --null-data --expression= :sed
awk = -F: -v: :awk
shuf = -ez -n: -i: --head-count= --input-range= --zero-terminated --echo :paths
join = -iz -a: -e: -j: -o: -t: -v: -1: -2: --check-order --nocheck-order --header :paths
expand = -i -t: --initial --tabs= :paths
unexpand = -a -t: --all --first-only --tabs= :paths
fmt = -csu -w: -g: --width= --split-only --uniform-spacing :paths
base64 = -di -w: --decode --wrap= :paths
xxd = -a -b -e -E -i -p -u -c! -g! -l! -o! -s! :single :paths :most=1
zcat = :paths
gzip = -ltv --list --test --verbose :paths :needs=-l,-t,--list,--test
unzip = -lv :paths :needs=-l,-v
rev = :paths
nl = -p -b: -d: -f: -h: -i: -l: -n: -s: -v: -w: :paths
head = -qvz -# -n: -c: --lines= --bytes= --quiet --silent --verbose :paths
tail = -qvz -# -n: -c: --lines= --bytes= --quiet --silent --verbose :paths
wc = -clmLw --bytes --chars --lines --words --max-line-length :paths
cut = -nsz -b: -c: -d: -f: --bytes= --characters= --delimiter= --fields= --complement --only-delimited
    --output-delimiter= :paths
tr = -cCdst --complement --delete --squeeze-repeats --truncate-set1 :words
sort = -bcCdfghiMmnRrsuVz -k: -t: --key= --field-separator= --numeric-sort --reverse --unique --version-sort
    --human-numeric-sort --ignore-case --check? --stable --general-numeric-sort --month-sort :paths
uniq = -cdDiuz -f: -s: -w: --count --repeated --unique --ignore-case --skip-fields= --skip-chars= :paths :most=1
comm = -123z --check-order --nocheck-order --output-delimiter= --total :paths
paste = -sz -d: --delimiters= --serial :paths
column = -tx -s: -c: -o: --table --separator= :paths
fold = -bs -w: --width= :paths
diff = -abBcdeEiNpqstTuwyZ -# -U: -C: -W: -x: -I: --unified? --context? --brief --new-file --color? --no-dereference
    --ignore-all-space --ignore-blank-lines --ignore-case --ignore-space-change --side-by-side --width= --exclude=
    --text --minimal --report-identical-files --suppress-common-lines :paths
diff = -abBcdeEiNpqrstTuwyZ -# -U: -C: -W: -x: -I: --unified? --context? --brief --recursive --new-file --color?
    --ignore-all-space --ignore-blank-lines --ignore-case --ignore-space-change --side-by-side --width= --exclude=
    --text --minimal --report-identical-files --suppress-common-lines --no-dereference :paths
    :needs=--no-dereference
cmp = -bls -n: -i: :paths
md5sum = -btz --tag :paths
sha1sum = -btz --tag :paths
sha256sum = -btz --tag :paths
sha512sum = -btz --tag :paths
cksum = -z -a: --algorithm= :paths
strings = -a -n: -t: --all --bytes= --radix= :paths :nofiles
od = -abcdfilosvx -A: -j: -N: -t: -w? :paths
hexdump = -bcCdovx -n: -s: :paths
grep = -acEFGhHiIlLnoPqrsTUvwxyZz -# -A: -B: -C: -e: -m: --after-context= --before-context= --context= --color?
    --colour? --count --extended-regexp --fixed-strings --perl-regexp --basic-regexp --files-with-matches
    --files-without-match --ignore-case --no-ignore-case --include= --exclude= --exclude-dir= --invert-match
    --line-number --line-regexp --max-count= --no-filename --with-filename --no-messages --only-matching --quiet
    --silent --recursive --regexp= --text --word-regexp --binary-files= :pattern
rg = -acFhHiIlnNopPqsSuUvwx0 -A: -B: -C: -e: -g: -m: -t: -T: -d: -j: --after-context= --before-context= --context=
    --color= --count --count-matches --files --files-with-matches --files-without-match --fixed-strings --glob=
    --iglob= --hidden --no-hidden --ignore-case --smart-case --case-sensitive --invert-match --json --line-number
    --no-line-number --max-count= --max-depth= --multiline --no-filename --with-filename --no-heading --heading
    --no-ignore --only-matching --pcre2 --pretty --quiet --regexp= --replace= --sort= --stats --type= --type-not=
    --type-list --trim --vimgrep --word-regexp --line-regexp --threads= --column :pattern
jq = -acCeMnrRsSj --compact-output --exit-status --null-input --raw-output --raw-input --slurp --sort-keys --tab
    --indent= :pattern :noimports
find = -H -L -P -name! -iname! -path! -ipath! -wholename! -regex! -iregex! -regextype! -type! -xtype! -size! -empty
    -maxdepth! -mindepth! -depth -mount -xdev -mtime! -mmin! -atime! -amin! -ctime! -cmin! -newer! -newermt! -user!
    -group! -perm! -links! -inum! -readable -writable -executable -print -print0 -printf! -ls -prune -quit -not -a -o
    -and -or -true -false -nouser -nogroup -lname! -ilname! -daystart -follow :grouping :single :paths
git status = -sbvz -u? --short --branch --porcelain? --long --verbose --ignored? --untracked-files? --show-stash
    --ahead-behind --no-ahead-behind --column? --no-column --renames --no-renames --find-renames? --ignore-submodules
    :paths
git log = -pqsuzgmcEFPrtRwbiW -# -n: -L: -S: -G: -M? -C? -U: --oneline --graph --decorate? --no-decorate --all
    --branches? --tags? --remotes? --stat? --shortstat --numstat --dirstat? --summary --name-only --name-status
    --patch --no-patch --pretty? --format= --abbrev-commit --no-abbrev-commit --abbrev? --author= --committer= --grep=
    --all-match --invert-grep --since= --after= --until= --before= --max-count= --skip= --merges --no-merges
    --first-parent --reverse --date= --date-order --author-date-order --topo-order --follow --full-history
    --simplify-by-decoration --left-right --cherry-pick --cherry --cherry-mark --boundary --no-walk? --walk-reflogs
    --relative-date --parents --children --diff-filter= --find-renames? --find-copies? --word-diff? --color?
    --no-color --color-words? --unified= --raw --full-index --ignore-all-space --ignore-space-change
    --ignore-blank-lines --ignore-space-at-eol --minimal --patience --histogram --diff-algorithm= --no-ext-diff
    --no-textconv --no-renames --pickaxe-all --pickaxe-regex --regexp-ignore-case --extended-regexp --fixed-strings
    --no-mailmap --mailmap --compact-summary --patch-with-stat --function-context --inter-hunk-context= --source
    --clear-decorations --decorate-refs= --decorate-refs-exclude= --exclude= --not --min-parents= --max-parents=
    --no-expand-tabs --root --cc --exit-code --quiet --check --text --cached --staged --merge-base --relative?
    --no-relative --ignore-submodules --src-prefix= --dst-prefix= --no-prefix --stat-width=
    --ws-error-highlight= :paths :nosignatures
git branch = -arvqi --all --remotes --verbose --show-current --merged --no-merged --contains= --no-contains= --sort=
    --format= --points-at= --color? --no-color --column? --no-column --ignore-case --abbrev? --list :none :nosignatures
git branch = -arvqil --all --remotes --verbose --list --merged --no-merged --contains= --sort= --format= --color?
    --no-color :words :needs=--list,-l,--merged,--no-merged :nosignatures
git tag = -n? -li --list --sort= --format= --contains= --no-contains= --merged? --no-merged? --points-at= --column?
    --color? --ignore-case :none :nosignatures
git tag = -n? -li --list --sort= --format= --ignore-case :words :needs=--list,-l :nosignatures
git remote = -v --verbose :none
git remote get-url = --all --push :words
git stash list = -# --oneline --stat --date= --format= --pretty? -p -n: :none :nosignatures
git stash show = -pu --patch --stat --name-only --name-status --include-untracked --no-color :words
git worktree list = -vz --porcelain --verbose :none
git submodule status = --recursive --cached :paths :acts
git rev-parse = -q --short? --abbrev-ref? --verify --quiet --show-toplevel --show-prefix --show-cdup --git-dir
    --absolute-git-dir --git-common-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository --symbolic
    --symbolic-full-name --all --branches? --tags? --remotes? --not --sq --revs-only --no-revs --flags --no-flags
    --show-object-format? :paths
git rev-list = -n: -# --all --count --max-count= --since= --until= --author= --grep= --merges --no-merges --reverse
    --first-parent --left-right --objects --no-walk? --branches? --tags? --not --topo-order --parents --date-order
    --abbrev-commit --oneline :paths
git ls-files = -cdmosiuktvzf -x: --cached --deleted --modified --others --stage --ignored --unmerged --killed
    --exclude-standard --exclude= --full-name --error-unmatch --abbrev? --eol --deduplicate
    --format= :paths
git ls-tree = -drtlz --long --name-only --name-status --full-name --full-tree --object-only --abbrev? --format= :paths
git cat-file = -petsq :paths
git blame = -bcefklnpstw -L: -M? -C? --since= --porcelain --line-porcelain --incremental --show-email --show-name
    --show-number --root --reverse --first-parent --date= --abbrev? --color-lines --color-by-age --ignore-rev= :paths
git shortlog = -nsec --numbered --summary --email --all --since= --until= --after= --before= --no-merges --author=
    --group= :paths :nosignatures
git describe = --all --tags --always --dirty? --broken? --long --abbrev? --match= --exclude= --exact-match --contains
    --first-parent --candidates= --debug :paths
git merge-base = -a --all --octopus --independent --is-ancestor --fork-point :paths
git name-rev = --all --name-only --tags --refs= --exclude= --always --no-undefined :paths
git for-each-ref = --sort= --format= --count= --contains= --merged? --no-merged? --points-at= --color? --ignore-case
    :words :nosignatures
git show-ref = -dsq --head --tags --heads --branches --dereference --verify --hash? --abbrev? --quiet :words
git reflog = -# -n: --all --oneline --date= --format= --pretty? :none :nosignatures
git reflog show = -# -n: --all --oneline --date= --format= --pretty? :paths :nosignatures
git config = -z --get --get-all --show-scope --local --null --type= --bool --int :most=1
    :among=user.name,user.email,init.defaultBranch,core.autocrlf,core.ignorecase :needs=--get,--get-all
git config = -lz --get --get-all --get-regexp --list --show-origin --show-scope --name-only --local --null --type=
    --bool --int :words :keys :most=1 :needs=--local
git grep = -aiIhHlLnopEFGPqvwWzc -# -A: -B: -C: -e: -m: --cached --untracked --ignore-case --word-regexp
    --invert-match --extended-regexp --basic-regexp --perl-regexp --fixed-strings --line-number --column
    --files-with-matches --files-without-match --name-only --only-matching --count --color? --no-color --break
    --heading --show-function --function-context --max-depth= --all-match --and --or --not
    --quiet --max-count= :paths
git check-ignore = -vnq --verbose --non-matching --quiet --no-index :paths
git count-objects = -vH --verbose --human-readable :none
git version = --build-options :none
git --version = :none
git add = -AuNvn --all --update --dry-run --verbose --intent-to-add --ignore-removal --no-all --renormalize :paths
    :acts
git commit = -aqvs -m: --all --message= --quiet --verbose --signoff --allow-empty --dry-run --short --status
    --no-status :paths :acts
git switch = -q -c: --create= --detach --quiet --no-guess :plain :acts
git fetch = -apqtv --all --prune --tags --no-tags --quiet --verbose --dry-run --depth= --unshallow :remote :acts
git pull = -qrv --rebase --no-rebase --ff-only --ff --no-ff --quiet --verbose --prune --tags :remote :acts
git push = -nquv --dry-run --quiet --set-upstream --verbose --tags --follow-tags --porcelain :remote :acts
mkdir = -pv --parents --verbose :paths :acts
python --version = :none
python -V = :none
python3 --version = :none
python3 -V = :none
node --version = :none
node -v = :none
npm --version = :none
npm -v = :none
npm ls = -al --all --depth= --json --long --parseable --prod --dev :words :acts
npm test = :none :acts
npm run = :plain :most=1 :acts
pip --version = :none
pip list = --format= --not-required --user --local :none
pip show = -f --files :words
pip freeze = --all --local --user :none
uv --version = :none
cargo --version = :none :acts
cargo tree = -ide --workspace --depth= -p: --package= --invert --duplicates --edges= --offline --locked :none :acts
cargo metadata = --no-deps --format-version= --offline --locked :none :acts
cargo build = -qrv -j: -p: --release --quiet --verbose --workspace --all --lib --bins --bin= --tests --examples
    --all-targets --all-features --no-default-features --features= --package= --exclude= --locked --offline --frozen
    -F: --jobs= --keep-going :words :acts
go version = :none :single :acts
go env = -json -changed :words :single :acts
go list = -m -json -deps -test -f= -u -e :words :single :acts
go test = -v -short -race -cover -json -failfast -run= -skip= -count= -timeout= -bench= -benchmem -parallel= -cpu=
    -tags= -shuffle= -list= -covermode= :paths :single :acts
go vet = -json -tags= :paths :single :acts
go build = -v -race -tags= -trimpath :paths :single :acts
gofmt = -l -s :paths :single
pytest = -qvxslh -# -k: -m: -r: -n: --quiet --verbose --exitfirst --maxfail= --lf --last-failed --ff --failed-first
    --nf --new-first --sw --stepwise --co --collect-only --tb= --durations= --durations-min= --no-header --no-summary
    --showlocals --capture= --color= --disable-warnings --strict-markers --strict-config --numprocesses= --dist=
    --timeout= --cov? --no-cov --cov-branch --cov-fail-under= --markers --fixtures --setup-show --setup-plan
    --runxfail --reverse --random-order --version --help --deselect= --ignore= --verbosity= --full-trace
    --hypothesis-seed= --hypothesis-show-statistics --benchmark-skip --benchmark-only :paths :nofiles :acts
ruff check = -qvs --quiet --verbose --silent --diff --statistics --show-files --show-settings --select= --ignore=
    --extend-select= --output-format= --preview --no-cache --exit-zero --exclude= --no-fix :paths
    :needs=--no-fix,--diff :acts
ruff format = -qv --check --diff --quiet --preview --no-cache --exclude= :paths :acts
ruff --version = :none
black = -qv --check --diff --quiet --color -l: --line-length= --fast --safe :paths :needs=--check,--diff :acts
mypy = -v --strict --no-error-summary --show-error-codes --pretty --ignore-missing-imports --warn-unused-ignores
    --check-untyped-defs --disallow-untyped-defs --no-incremental --follow-imports= --python-version= :paths :acts
pyright = --stats --outputjson --verbose --level= --warnings --version :paths :acts
basedpyright = --stats --outputjson --verbose --level= --warnings --version :paths :acts
tsc = --noEmit --pretty :none :needs=--noEmit :acts
"""
"""One command per line, `=`, and its table. An indented line continues the table. A command may have several tables."""

SAME_TABLE: dict[str, str] = {
    "egrep": "grep",
    "gsed": "sed",
    "gawk": "awk",
    "mawk": "awk",
    "nawk": "awk",
    "fgrep": "grep",
    "git diff": "git log",
    "git show": "git log",
    "git whatchanged": "git log",
    "git diff-tree": "git log",
    "git stage": "git add",
    "py.test": "pytest",
    "python -m pytest": "pytest",
    "python3 -m pytest": "pytest",
    "uv run pytest": "pytest",
    "pip3 list": "pip list",
    "pip3 show": "pip show",
    "pip3 freeze": "pip freeze",
    "cargo check": "cargo build",
    "cargo test": "cargo build",
    "cargo clippy": "cargo build",
    "npm run-script": "npm run",
    "yarn test": "npm test",
    "pnpm test": "npm test",
}

RUNNERS = """
agent metier
sh bash dash ash zsh ksh mksh fish csh tcsh pwsh powershell cmd busybox toybox env xargs parallel nice ionice nohup
timeout time stdbuf setsid setarch linux32 linux64 script scriptreplay unshare nsenter chroot capsh setpriv runuser
sudo su doas pkexec ssh scp sftp rsync mosh telnet ftp lftp nc ncat netcat socat tar bsdtar cpio zip unzip 7z ar sed
gsed awk gawk mawk nawk perl python python2 python3 pypy pypy3 ipython ruby irb node nodejs deno bun lua luajit php R
Rscript julia tclsh wish expect ghci scala java javac kotlin groovy jshell dotnet mono swift make gmake cmake ninja
meson bazel scons just task rake gradle gradlew mvn ant gcc g++ cc c++ clang clang++ ld as tcc rustc gdb lldb strace
ltrace perf valgrind vim vi view ex ed nvim emacs nano pico less more most man info watch entr inotifywait flock tmux
screen byobu dialog git hg svn cvs npm npx yarn pnpm pip pip3 pipx uv uvx poetry conda mamba pdm hatch tox nox cargo
go docker podman nerdctl ctr runc kubectl helm ansible ansible-playbook terraform tofu vagrant systemctl systemd-run
service crontab at batch anacron eval exec source . command builtin trap alias unalias coproc enable hash bind
complete compgen compopt declare typeset local export readonly unset set shopt let read readarray mapfile getopts
pushd popd dirs wait jobs fg bg disown suspend logout exit return break continue shift times ulimit umask type find fd
fdfind sqlite3 psql mysql mongo redis-cli gpg openssl mail sendmail mutt exim split csplit dpkg apt apt-get apk dnf
yum brew snap flatpak pacman rpm install run-parts start-stop-daemon pre-commit ld.so ld-linux.so.2
ld-linux-x86-64.so.2 fakeroot proot bwrap firejail gtester logrotate iptables ip tcpdump nmap wget curl aria2c dc bc
m4 cpan gem bundle composer nroff troff groff pg_dump restic rclone tee dd
"""
"""Programs that run other programs or code, or write where an argument says. A rule with the bare name never allows
them."""

PLAIN = """
cp mv rm rmdir touch ln link unlink chmod chown chgrp truncate shred sync mktemp mkfifo kill pgrep pkill pidof ps top
free vmstat lscpu lsblk lsof ss netstat pstree who w users last groups logname tty stty printenv locale getconf cal
base64 base32 basenc shuf tsort join expand unexpand fmt pr factor numfmt sum b2sum sha224sum sha384sum iconv dos2unix
unix2dos xxd uuidgen yes gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd dig host nslookup ping tput clear
"""
"""Programs without a table that start no other program, whatever their arguments."""

BUILTINS = """
. : alias bg bind break builtin caller command compgen complete compopt continue declare dirs disown enable eval exec
exit export fc fg getopts hash help history jobs let local logout mapfile popd pushd read readarray readonly return
set shift shopt source suspend times trap type typeset ulimit umask unalias unset wait
"""
"""Builtins that exist only in a shell: a line with one of them is run by bash."""
