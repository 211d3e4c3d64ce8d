//! Times, and how much later they are a period later.

/// A time, s.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    pub(super) at: f64,
    /// By how much its counterpart is later when as many periods have passed as are looked at; kept only where that is
    /// asked for.
    pub(super) rate: f64,
}

/// Until when the choices between two times stay as they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    /// How often as many periods can pass before another time is the later of two.
    pub(super) limit: f64,
    /// Seconds that are no difference.
    pub(super) tolerance: f64,
}

impl Time {
    pub(super) fn after(self, seconds: f64) -> Time {
        Time { at: self.at + seconds, ..self }
    }

    /// The later of two. With `RATES` it notes how long that one stays the later.
    pub(super) fn later<const RATES: bool>(self, other: Time, choices: &mut Choices) -> Time {
        if !RATES {
            return Time { at: if self.at > other.at { self.at } else { other.at }, rate: 0.0 };
        }
        let gap = self.at - other.at;
        if gap.abs() <= choices.tolerance {
            return Time { at: self.at.max(other.at), rate: self.rate.max(other.rate) };
        }
        let (late, early) = if gap > 0.0 { (self, other) } else { (other, self) };
        let closing = early.rate - late.rate;
        if closing > choices.tolerance {
            choices.limit = choices.limit.min(gap.abs() / closing);
        }
        late
    }
}
