# needs: busybox
set -e
busybox mkdir b
echo a > b/c
busybox cp b/c b/d
busybox ls -l b | busybox wc -l
busybox cat b/c b/d | busybox sort
busybox sh -c 'for n in 1 2 3; do busybox echo $n; done | busybox head -2'
busybox sleep 0.01
busybox find b | busybox sort
