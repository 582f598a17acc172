# needs: tar xz find timeout
set -e
mkdir d
echo x > d/f
cp -a d e
tar cJf t.txz d
tar xJf t.txz -C e
find . -type f | sort
sed s/x/y/ d/f | grep -c y
seq 9 | sort -r | head -2
timeout 5 true
ln -s d s
readlink s
mv d q
rm -r q
test "$(nproc)" -gt 0 && test "$(date +%Y)" -gt 2000 && df . > /dev/null && ps -e > /dev/null && echo fine
