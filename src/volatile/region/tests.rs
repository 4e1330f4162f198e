use super::*;
use crate::volatile::Stray;

#[test]
fn a_pin_that_the_kernel_refuses_changes_nothing() {
    let page = sys::page_bytes();
    let options = VolatileRegion::options().stray(Stray::Faults);
    let region = match options.map(8 * page) {
        Ok(region) => region,
        Err(error) => return println!("skipped: needs userfaultfd: {error}"),
    };
    let refuse = |on| {
        let faults = region.faults.as_ref().expect("it faults");
        faults.refuses.store(on, Ordering::Relaxed);
    };
    region.pin_mut(0..8 * page).expect("memory").fill(5);
    let middle = region.pin(3 * page..5 * page).expect("memory");
    refuse(true);
    let refused = region.pin(0..8 * page).expect_err("no memory");
    assert_eq!(refused, PinError::Kernel(sys::ENOMEM));
    refuse(false);
    drop(middle);
    for _ in 0..2 {
        let all = region.pin_mut(0..8 * page).expect("nobody holds any of it");
        assert!(all.is_kept() && all.iter().all(|byte| *byte == 5));
    }
    // Nothing was forgotten in the order either.
    assert_eq!(region.purge_now(usize::MAX), 8 * page);
}
