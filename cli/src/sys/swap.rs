//! Swap devices, and the right to have them.

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::checked;

/// Whether this process acts as root.
pub fn is_root() -> bool {
    // SAFETY: only reads an identity of the process.
    unsafe { libc::geteuid() == 0 }
}

/// Adds a prepared swap device, before any other in the order of use.
pub fn swap_on(device: &Path) -> io::Result<()> {
    /// SWAP_FLAG_PREFER with the highest priority there is.
    const FIRST: libc::c_int = 0x8000 | 0x7fff;
    let path = terminated(device)?;
    // SAFETY: the path is a terminated string; the call touches no memory of ours.
    checked(unsafe { libc::swapon(path.as_ptr(), FIRST) })
}

/// Brings back all that lies on the device, and removes it from swap.
pub fn swap_off(device: &Path) -> io::Result<()> {
    /// Attempts, a hundredth of a second apart. The kernel also says ENOMEM where
    /// it finds another thread at a page that it wants back itself, and then
    /// keeps the device; a second is more than such a thread needs.
    const ATTEMPTS: u32 = 100;
    let path = terminated(device)?;
    let mut attempts = 0;
    loop {
        // SAFETY: as above.
        let Err(error) = checked(unsafe { libc::swapoff(path.as_ptr()) }) else {
            return Ok(());
        };
        match error.raw_os_error() {
            // A second Ctrl-C must not leave the device behind.
            Some(libc::EINTR) => {}
            Some(libc::ENOMEM) if attempts < ATTEMPTS => {
                attempts += 1;
                thread::sleep(Duration::from_millis(10));
            }
            _ => return Err(error),
        }
    }
}

fn terminated(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}
