# needs: git
set -e
git init -q r
cd r
echo a > a
git add a
git -c user.name=n -c user.email=e commit -qm m
git log --format=%s
git gc -q
git clone -q . ../c
git worktree add -q ../w 2> /dev/null
ls ../c ../w
