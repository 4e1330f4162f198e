//! A progress bar on stderr, where stderr is a terminal. It is drawn between
//! measurements only, never by a thread of its own, which would disturb them.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub struct Progress(ProgressBar);

impl Progress {
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (about {eta} left) {msg}")
        {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Announces that many more measurements.
    pub fn expect(&self, measurements: usize) {
        self.0.inc_length(measurements as u64);
    }

    pub fn now(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    pub fn done_one(&self) {
        self.0.inc(1);
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}
