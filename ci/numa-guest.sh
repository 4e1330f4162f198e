#!/usr/bin/env bash
# The tests on a machine with two memory nodes: an emulated one, with the
# kernel of Debian. Not a part of .ci/run: it takes minutes, and qemu is large.
#
#     ci/numa-guest.sh                    # everything but the slow ones
#     ci/numa-guest.sh nodes fork         # these test files only
#     VMLINUZ=/boot/vmlinuz-... ci/numa-guest.sh
#
# Needs Debian on x86-64, and root where packages are missing. Leaves the
# guest's output in target/numa-guest/log. Passes when each test program
# passed and the two nodes were there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Seconds for the whole guest, and in it for one program. Emulated, each takes
# about ten times as long as elsewhere.
GUEST_SECONDS=1800
PROGRAM_SECONDS=400

# Test files that start hundreds of processes and know nothing of nodes.
SLOW=' exit_hazards exit_parallel fork '

room=${CARGO_TARGET_DIR:-target}/numa-guest
mkdir -p "$room"
room=$(cd "$room" && pwd)

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v cpio >/dev/null || missing+=(cpio)
if [ ! -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then
    missing+=(busybox-static) # one that needs no libraries
fi
if [ "${#missing[@]}" -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "only root can install what is missing: ${missing[*]}" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

# The kernel, taken out of its package and not installed.
if [ -z "${VMLINUZ:-}" ]; then
    if ! compgen -G "$room/kernel/boot/vmlinuz-*" >/dev/null; then
        package=$(apt-cache depends linux-image-cloud-amd64 \
            | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
        (cd "$room" && apt-get download -q "$package")
        dpkg -x "$room/$package"_*.deb "$room/kernel"
    fi
    VMLINUZ=$(compgen -G "$room/kernel/boot/vmlinuz-*" | tail -n 1)
fi

# The command, the library's unit tests, and its integration tests.
programs=$(cargo test --release --package mmzap --all-features --lib --tests \
    --no-run --message-format=json \
    | sed -nE 's/.*"name":"([^"]+)".*"executable":"([^"]+)".*/\1 \2/p')
cargo build --release --package mmzap-cli
mmzap=$(cargo build --release --package mmzap-cli --message-format=json 2>/dev/null \
    | sed -nE 's/.*"executable":"([^"]+)".*/\1/p')

# The guest's files: all of them in its memory, so without debug symbols.
files=$room/files
rm -rf "$files"
mkdir -p "$files"/{bin,dev,proc,sys,tmp,tests}
cp /bin/busybox "$files/bin/"
strip -o "$files/bin/mmzap" "$mmzap"
chosen=" $* "
everything=
[ $# -gt 0 ] || everything=yes
while read -r name program; do
    if [[ $chosen == *" $name "* ]] || { [ "$everything" ] && [[ $SLOW != *" $name "* ]]; }; then
        strip -o "$files/tests/$name" "$program"
    fi
done <<<"$programs"
ldd "$files/bin/mmzap" "$files"/tests/* | grep -oE '/[^ ]+\.so[^ ]*' | sort -u \
    | while read -r library; do
        mkdir -p "$files$(dirname "$library")"
        cp -L "$library" "$files$library"
    done

cat >"$files/init" <<INIT
#!/bin/busybox sh
program_seconds=$PROGRAM_SECONDS
everything=$everything
INIT
cat >>"$files/init" <<'INIT'
export PATH=/bin HOME=/tmp RUST_BACKTRACE=1
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tracefs trace /sys/kernel/tracing
mount -t cgroup2 group /sys/fs/cgroup
echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
echo 1 >/proc/sys/kernel/printk # the log shows what the programs say

uname -r
failed=
check() { # name, command
    name=$1
    shift
    echo "guest: == $name"
    began=$(cut -d. -f1 /proc/uptime)
    # Through a pipe: on a terminal there would be progress bars.
    {
        timeout -s KILL "$program_seconds" "$@" </dev/null 2>&1
        echo $? >/tmp/status
    } | cat
    status=$(cat /tmp/status)
    took=$(($(cut -d. -f1 /proc/uptime) - began))
    echo "guest: $name ended with $status after $took s"
    [ "$status" -eq 0 ] || failed="$failed $name"
}

two_nodes() {
    grep . /sys/devices/system/node/has_memory /sys/devices/system/node/node*/cpulist
    [ "$(cat /sys/devices/system/node/has_memory)" = 0-1 ]
}
echo "guest: == two nodes"
two_nodes || failed="$failed two-nodes"

if [ "$everything" ]; then
    check doctor mmzap doctor
    check bench mmzap bench free --size 512M --runs 3
fi
for program in /tests/*; do
    skips=
    # Emulated, a simulation takes minutes, and a millisecond is not one.
    [ "$program" != /tests/mmzap ] || skips='--skip tune::tests --skip a_job_finds_out'
    # shellcheck disable=SC2086
    check "${program#/tests/}" "$program" $skips
done
if [ -z "$failed" ]; then
    echo "guest: all passed"
else
    echo "guest: failed:$failed"
fi
poweroff -f
INIT
chmod +x "$files/init"
(cd "$files" && find . | cpio --quiet -o -H newc | gzip -1) >"$room/initramfs"

# Emulated: works everywhere, also inside a guest. -no-reboot and panic=-1: a
# panic of the kernel ends qemu.
timeout "$GUEST_SECONDS" qemu-system-x86_64 \
    -accel tcg,thread=multi -machine q35 -cpu max \
    -smp 4,sockets=2 -m 2G \
    -object memory-backend-ram,id=m0,size=1G \
    -object memory-backend-ram,id=m1,size=1G \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 \
    -numa node,nodeid=1,cpus=2-3,memdev=m1 \
    -kernel "$VMLINUZ" -initrd "$room/initramfs" \
    -append 'console=ttyS0 panic=-1 quiet' \
    -nographic -no-reboot -nic none </dev/null | sed -u 's,\r,,g' | tee "$room/log" || true

grep -qx 'guest: all passed' "$room/log" || {
    echo 'numa-guest: not passed; the end of target/numa-guest/log says what' >&2
    exit 1
}
