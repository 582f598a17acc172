# needs: gcc
set -e
printf '#include <stdio.h>\nint main(void) { puts("built"); }\n' > m.c
gcc -O2 m.c -o m
./m
