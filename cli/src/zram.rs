//! A swap device of compressed memory, for as long as a bench needs it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::restore::Restore;
use crate::unavailable::Unavailable;
use crate::{output, size, sys};

const CONTROL: &str = "/sys/class/zram-control";

/// How long somebody else may hold the device open: udev looks at each new one,
/// for some ten milliseconds. Shorter leaves a device behind on a busy machine,
/// longer keeps Ctrl-C waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sets up swap of `bytes` that is used before any other, until `restore` goes back.
pub fn swap(bytes: u64, restore: &Restore) -> Result<()> {
    check()?;
    mention_leftovers();
    let number = restore.change(|steps| {
        // Reading this file is what makes a device.
        let path = format!("{CONTROL}/hot_add");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot make a zram device ({path})"))?;
        let number: u32 = text
            .trim()
            .parse()
            .with_context(|| format!("{path} does not answer with a number"))?;
        steps.push(move || patiently(&format!("{CONTROL}/hot_remove"), &number.to_string()));
        Ok(number)
    })?;
    let device = PathBuf::from(format!("/dev/zram{number}"));
    restore.change(|steps| {
        let directory = format!("/sys/block/zram{number}");
        write(&format!("{directory}/disksize"), &bytes.to_string())?;
        steps.push(move || patiently(&format!("{directory}/reset"), "1"));
        Ok(())
    })?;
    wait_for(&device)?;
    restore.change(|steps| {
        make_swap(&device, bytes)
            .with_context(|| format!("cannot write to {}", device.display()))?;
        sys::swap_on(&device).with_context(|| format!("cannot swap on {}", device.display()))?;
        let device = device.clone();
        steps.push(move || {
            sys::swap_off(&device).with_context(|| {
                format!(
                    "{} stays a swap device: `swapoff {0}` and `echo {number} > \
                     {CONTROL}/hot_remove` remove it",
                    device.display()
                )
            })
        });
        Ok(())
    })
}

/// Fails where there can be no such device.
fn check() -> Result<()> {
    if !sys::is_root() {
        return Err(Unavailable::because(
            "--zram sets up a swap device, which needs root",
        ));
    }
    if !Path::new(CONTROL).exists() {
        // Without modprobe, or without the module, the file stays missing.
        let _ = Command::new("modprobe")
            .arg("zram")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
    if !Path::new(CONTROL).exists() {
        return Err(Unavailable::because(format!(
            "this kernel has no zram ({CONTROL} is missing, also after `modprobe zram`)"
        )));
    }
    Ok(())
}

/// A run that was killed leaves its device in use. It disturbs nothing, but
/// nobody else would say that it is there.
fn mention_leftovers() {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for device in swaps
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|device| device.starts_with("/dev/zram"))
    {
        output::complain(&format!(
            "{device} is a swap device already and stays one; if a killed run left it, \
             `swapoff {device}` and `echo {} > {CONTROL}/hot_remove` remove it",
            device.trim_start_matches("/dev/zram")
        ));
    }
}

fn wait_for(device: &Path) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !device.exists() {
        if Instant::now() > until {
            return Err(Unavailable::because(format!(
                "{} does not appear: is /dev managed by the kernel here?",
                device.display()
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Writes the head of an empty swap area: its version, its last page, and the
/// signature at the end of the first page.
fn make_swap(device: &Path, bytes: u64) -> io::Result<()> {
    let head = swap_head(sys::page_size(), bytes).ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = OpenOptions::new().write(true).open(device)?;
    file.write_all(&head)?;
    file.sync_all()
}

fn swap_head(page: usize, bytes: u64) -> Option<Vec<u8>> {
    const SIGNATURE: &[u8] = b"SWAPSPACE2";
    // The first KiB is left to boot loaders.
    const VERSION: usize = 1024;
    let last = u32::try_from(bytes / page as u64).ok()?.checked_sub(1)?;
    let mut head = vec![0; page];
    head[VERSION..VERSION + 4].copy_from_slice(&1_u32.to_ne_bytes());
    head[VERSION + 4..VERSION + 8].copy_from_slice(&last.to_ne_bytes());
    head[page - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    Some(head)
}

fn write(path: &str, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("cannot write {value} to {path}"))
}

/// Writes again while somebody holds the device open.
fn patiently(path: &str, value: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match fs::write(path, value) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
            }
            Err(error) => bail!("cannot write {value} to {path}: {error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Room on the device for `bytes` of memory: the head, and slots that the kernel
/// keeps per CPU.
pub fn room_for(bytes: u64) -> u64 {
    (bytes + bytes / 8 + 64 * size::MIB).next_multiple_of(size::MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_names_version_last_page_and_signature() {
        let head = swap_head(4096, 64 << 20).expect("fits");
        assert_eq!(head.len(), 4096);
        assert_eq!(&head[1024..1028], 1_u32.to_ne_bytes());
        assert_eq!(&head[1028..1032], 16_383_u32.to_ne_bytes());
        assert!(head.ends_with(b"SWAPSPACE2"));
        assert_eq!(swap_head(4096, 0), None);
        assert_eq!(swap_head(4096, u64::MAX), None);
    }
}
