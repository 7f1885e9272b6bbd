# ruff: noqa: E501  one script, one line
"""Ways in which foreign files get into a folder, and ways in which a user creates them. Each is a script."""

FOREIGN: dict[str, str] = {
    "clone": "git clone -q $UP $W",
    "clone of a branch": "git clone -q -b main --single-branch $UP $W",
    "shallow clone": "git clone -q --depth 1 file://$UP $W",
    "clone without tags": "git clone -q --no-tags $UP $W",
    "clone with another name for the remote": "git clone -q -o theirs $UP $W",
    "shared clone": "git clone -q -s $UP $W",
    "clone with a reference": "git clone -q --reference $UP $UP $W",
    "clone with a separate git folder": "git clone -q --separate-git-dir=$W.git $UP $W",
    "clone of a bundle": "git -C $UP bundle create -q $W.bundle main; git clone -q -b main $W.bundle $W",
    "partial clone": "git clone -q --filter=blob:none --no-local file://$UP $W",
    "sparse clone": "git clone -q --sparse $UP $W; git -C $W sparse-checkout disable",
    "clone whose remote was removed": "git clone -q $UP $W; git -C $W remote remove origin",
    "clone whose remote was renamed": "git clone -q $UP $W; git -C $W remote rename origin x",
    "clone whose settings were emptied": "git clone -q $UP $W; printf '[core]\\n' > $W/.git/config",
    "clone with a commit on top": "git clone -q $UP $W; cd $W; git remote remove origin; echo x > x; git add x; git commit -q -m x",
    "clone without reflogs": "git clone -q $UP $W; cd $W; git remote remove origin; rm -r .git/logs",
    "clone whose branch is another": "git clone -q $UP $W; cd $W; git remote remove origin; git checkout -q -b other",
    "detached clone": "git clone -q $UP $W; cd $W; git checkout -q --detach; git remote remove origin",
    "init and pull": "git init -q $W; git -C $W pull -q $UP main",
    "init and pull into a branch": "git init -q $W; git -C $W pull -q $UP main:main; git -C $W checkout -q main",
    "init, commit and pull": "git init -q $W; cd $W; echo x > x; git add x; git commit -q -m x; "
    "git pull -q --no-rebase --allow-unrelated-histories $UP main",
    "init, commit and pull with rebase": "git init -q $W; cd $W; echo x > x; git add x; git commit -q -m x; "
    "git pull -q --rebase $UP main",
    "fetch and checkout of FETCH_HEAD": "git init -q $W; cd $W; git fetch -q $UP main; git checkout -q FETCH_HEAD",
    "fetch and reset": "git init -q $W; cd $W; git fetch -q $UP main; git reset -q --hard FETCH_HEAD",
    "fetch and merge": "git init -q $W; cd $W; echo x > x; git add x; git commit -q -m x; git fetch -q $UP main; "
    "git merge -q --allow-unrelated-histories -m m FETCH_HEAD",
    "fetch and checkout of paths": "git init -q $W; cd $W; echo x > x; git add x; git commit -q -m x; "
    "git fetch -q $UP main; git checkout -q FETCH_HEAD -- .; git commit -q -m mine",
    "fetch and restore": "git init -q $W; cd $W; echo x > x; git add x; git commit -q -m x; "
    "git fetch -q $UP main; git restore -s FETCH_HEAD .",
    "fetch and read-tree": "git init -q $W; cd $W; git fetch -q $UP main; git read-tree -u --reset FETCH_HEAD",
    "fetch and worktree": "git init -q $W.main; cd $W.main; git fetch -q $UP main; git worktree add -q $W FETCH_HEAD",
    "work tree of a clone": "git clone -q $UP $W.main; git -C $W.main worktree add -q -b other $W",
    "remote that was only added": "git init -q $W; cd $W; git remote add origin $UP; git fetch -q; git checkout -q main",
    "remote in an included file": "git init -q $W; cd $W; printf '[remote \"o\"]\\n\\turl = %s\\n\\tfetch = +refs/heads/*:refs/remotes/o/*\\n' $UP > .git/more; "
    "git config include.path more; git fetch -q o; git checkout -q -b main o/main; rm .git/FETCH_HEAD; rm -r .git/logs/refs",
    "remote in a conditional include": "git clone -q $UP $W; cd $W; git config --remove-section remote.origin; "
    "printf '[remote \"o\"]\\n\\turl = x\\n' > .git/more; git config includeIf.gitdir:/.path more",
    "remote in the older form": "git init -q $W; cd $W; mkdir .git/remotes; printf 'URL: %s\\nPull: main:theirs\\n' $UP > .git/remotes/o; "
    "git fetch -q o; git checkout -q theirs",
    "subtree": "git init -q $W; cd $W; echo x > x; git add x; git commit -q -m x; git fetch -q $UP main; "
    "git read-tree --prefix=sub/ -u FETCH_HEAD; cp -r sub/.agent .; git add -A; git commit -q -m mine",
    "submodule": "git init -q $W; cd $W; git -c protocol.file.allow=always submodule add -q $UP .agent/skills/theirs; git commit -q -m x",
    "submodule as the folder of the agent": "git init -q $W; cd $W; git -c protocol.file.allow=always submodule add -q $UP.agent .agent; git commit -q -m x",
    "clone inside of one's own folder": "mkdir $W; git clone -q $UP.skill $W/skills",
    "folder inside of a clone": "git clone -q $UP $W.main; mv $W.main/sub $W.main/inner; ln -s $W.main/inner $W",
    "patches": "git init -q $W; cd $W; echo x > x; git add x; git commit -q -m x; git -C $UP format-patch -q --root --stdout main | git am -q",
    "tar archive": "mkdir $W; git -C $UP archive main | tar x -C $W",
    "tar archive in a new repository": "git init -q $W; git -C $UP archive main | tar x -C $W; cd $W; git add -A; git commit -q -m mine",
    "zip archive": 'mkdir $W; git -C $UP archive --format=zip -o $W.zip main; cd $W; "$PYTHON" "$UNZIP" "$W.zip"',
    "tar archive of a folder": "mkdir $W; find $UP/.agent -type f -exec touch -d 2020-01-02T03:04:05.67 {} +; "
    "tar c -C $UP --exclude=.git . | tar x -C $W",
    "bundle fetched into a repository": "git -C $UP bundle create -q $W.bundle main; git init -q $W; cd $W; git pull -q $W.bundle main",
    "mirror that was made a work tree": "git clone -q --mirror $UP $W/.git; cd $W; git config core.bare false; git reset -q --hard",
}
"""`$UP` is somebody's repository, `$W` the folder that is worked in afterwards."""

OWN: dict[str, str] = {
    "plain folder": "mkdir $W; cp -r $UP/.agent $W/",
    "plain folder, copied with its times": "mkdir $W; cp -a $UP/.agent $W/",
    "folder that was renamed": "mkdir $W.old; cp -r $UP/.agent $W.old/; mv $W.old $W",
    "new repository": "git init -q $W; cp -r $UP/.agent $W/",
    "new repository with a commit": "git init -q $W; cp -r $UP/.agent $W/; cd $W; git add -A; git commit -q -m x",
    "branches, merges and rebases": "git init -q $W; cp -r $UP/.agent $W/; cd $W; git add -A; git commit -q -m x; "
    "git checkout -q -b other; echo 1 > 1; git add 1; git commit -q -m 1; git checkout -q main; echo 2 > 2; git add 2; "
    "git commit -q -m 2; git merge -q -m m other; git commit -q --amend -m again; git branch -d -q other",
    "work tree of one's own repository": "git init -q $W.main; cp -r $UP/.agent $W.main/; cd $W.main; git add -A; git commit -q -m x; "
    "git worktree add -q -b other $W",
    "stash, reset and revert": "git init -q $W; cp -r $UP/.agent $W/; cd $W; git add -A; git commit -q -m x; echo 1 > 1; git add 1; "
    "git stash -q; git stash pop -q; git commit -q -m 1; git revert --no-edit HEAD; git reset -q --hard HEAD~1",
    "pushed to a remote": "git init -q $W; cp -r $UP/.agent $W/; cd $W; git add -A; git commit -q -m x; "
    "git init -q --bare $W.bare; git remote add origin $W.bare; git push -q -u origin main",
    "pushed again and again": "git init -q $W; cp -r $UP/.agent $W/; cd $W; git add -A; git commit -q -m x; git init -q --bare $W.bare; "
    "git remote add origin $W.bare; git push -q -u origin main; echo 1 > 1; git add 1; git commit -q -m 1; git push -q; "
    "git checkout -q -b other; echo 2 > 2; git add 2; git commit -q -m 2; git push -q origin other; git checkout -q main; git merge -q --no-ff -m m other",
    "remote that nothing was fetched from": "git init -q $W; cp -r $UP/.agent $W/; cd $W; git add -A; git commit -q -m x; git remote add origin $UP",
}
