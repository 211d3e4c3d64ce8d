//! Periods that are like the ones before, left out.
//!
//! A sweep in which every stage takes the steps of a period leaves all as it was, but for times. Let x be the times
//! that matter (when stages are free, when their messages have arrived, and when what waits in channels is there), and
//! let x(n) − x(n − c) = x(n − c) − x(n − 2c) = δ. Sweeps n − c to n are played with δ beside x: of two times the later
//! goes on with its δ. If what comes out is δ again, sweeps n to n + c add δ too, as long as of any two times the same
//! one is the later; how long that is follows from their distance and from how fast they approach each other. So whole
//! multiples of c periods can be left out, exactly, up to the next time at which another choice is made, where it goes
//! on sweep by sweep.
//!
//! Where all stages wait for one another, all δ become the same, with c at most about the micro-batches under way (the
//! cyclicity of the critical circuits: the number of stages, or up to twice that). Before that is so, a stage that is
//! slower by little builds up a queue for many periods; and in GPipe's two halves, the one after the other, the first
//! stages may be faster than the last for ever.

use super::super::Kind;
use super::engine::Engine;
use super::time::Choices;
use super::Pipeline;

/// Periods after which the mean of the last half of them stands for those to come.
const SETTLE: u32 = 512;

/// Periods at most after which a state is looked for again.
const MOST: usize = 64;

/// Relative difference of times that are the same: rounding, some thousand times over.
const SAME: f64 = 1e-12;

/// What is known of the periods so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Steady {
    stages: usize,
    /// Micro-batches of a period.
    round: u32,
    /// Periods at most after which all is as it was.
    most: usize,
    enabled: bool,
    /// Which steady phase it is.
    phase: u32,
    /// When each stage is free and its messages have arrived, at the end of the last periods, in a ring of `rows`,
    /// a power of two that is more than 2 `most`.
    history: Vec<[f64; 3]>,
    /// By row: the sum of when stages are free.
    sums: Vec<f64>,
    rows: usize,
    /// Periods since the last that was left out, or since the phase began.
    periods: u32,
    /// The periods and sweeps left of a trial with rates.
    trial: Option<(usize, usize)>,
    /// Periods of the trial that failed last, so that longer ones come first, and when that was.
    failed: (usize, u32),
    /// By stage: seconds of sending at its start.
    sending: Vec<f64>,
    /// The latest time at half of the periods after which a mean is taken.
    half: f64,
    /// Whether a mean was taken.
    pub(super) mean: bool,
}

impl Steady {
    pub(super) fn reset(&mut self, p: &Pipeline) {
        self.stages = p.stages as usize;
        (self.round, self.most) = match p.kind {
            Kind::Interleaved if p.chunks > 1 => (p.stages, 8),
            _ => (1, (2 * self.stages).min(MOST)),
        };
        // With fewer micro-batches no phase has as many periods, and steps of some phases may not exist.
        self.enabled = p.microbatches >= 2 * p.stages && p.microbatches / self.round > 3;
        (self.phase, self.trial, self.mean) = (0, None, false);
        self.rows = (2 * self.most + 1).next_power_of_two();
        let places = self.rows * self.stages;
        if self.history.len() < places {
            self.history.resize(places, [0.0; 3]);
        }
        if self.sums.len() < self.rows {
            self.sums.resize(self.rows, 0.0);
        }
        self.clear();
    }

    fn clear(&mut self) {
        (self.periods, self.trial, self.failed) = (0, None, (0, 0));
    }

    /// Micro-batches back to which times are looked at.
    pub(super) fn reach(&self) -> u32 {
        self.round * self.most as u32
    }

    /// Whether rates are asked for.
    pub(super) fn rates(&self) -> bool {
        self.trial.is_some()
    }

    /// The row of so many periods ago.
    fn row(&self, periods: usize) -> usize {
        (self.periods as usize).wrapping_sub(periods) & (self.rows - 1)
    }

    /// The times of a stage so many periods ago.
    fn ago(&self, periods: usize, stage: usize) -> [f64; 3] {
        self.history[self.row(periods) * self.stages + stage]
    }

    /// After how many periods, `least` or more, the state seems to come back: each of the last c periods has added as
    /// much to the sum over all stages as the one c before it, and all c together to each stage.
    fn comes_back(&self, least: usize, tolerance: f64) -> Option<usize> {
        let same = |now: f64, before: f64, first: f64, enough: f64| (now - 2.0 * before + first).abs() <= enough;
        let sum = |ago: usize| self.sums[self.row(ago)];
        let enough = tolerance * self.stages as f64;
        let added = |a: usize, c: usize, b: usize| ((sum(a) - sum(a + c)) - (sum(b) - sum(b + c))).abs();
        let sums = |c: usize| (1..=c).rev().all(|ago| added(0, c, ago) <= enough);
        let stages = |c: usize| {
            let [now, before, first] = [0, c, 2 * c].map(|ago| self.row(ago) * self.stages);
            let times = |row: usize| self.history[row..row + self.stages].iter().map(|times| times[0]);
            times(now).zip(times(before)).zip(times(first)).all(|((n, b), f)| same(n, b, f, tolerance))
        };
        let most = self.most.min((self.periods as usize).saturating_sub(1) / 2);
        (least..=most).find(|c| sums(*c) && stages(*c))
    }
}

impl Engine {
    /// Looks at the state behind a sweep, and leaves out what it can.
    pub(super) fn look(&mut self) {
        let Some(first) = self.stages.first().filter(|_| self.steady.enabled) else { return };
        let phase = first.cursor.steady();
        let aligned = phase > 0 && self.stages.iter().all(|s| s.cursor.steady() == phase && s.budget == 0);
        if !aligned || phase != self.steady.phase {
            self.steady.clear();
        }
        self.steady.phase = phase;
        if !aligned {
            return;
        }
        let now = self.note();
        if self.steady.periods == SETTLE / 2 {
            self.steady.half = now;
        }
        match self.steady.trial {
            Some((c, 1)) => {
                self.steady.trial = None;
                match self.holds(c) {
                    true => self.leave_out(c),
                    false => self.steady.failed = (c, self.steady.periods),
                }
            }
            Some((c, left)) => self.steady.trial = Some((c, left - 1)),
            None => self.propose(now),
        }
    }

    /// Notes the times of a sweep; the latest of them.
    fn note(&mut self) -> f64 {
        let steady = &mut self.steady;
        steady.periods += 1;
        let row = steady.row(0);
        let (mut now, mut sum) = (0.0f64, 0.0);
        for (place, stage) in steady.history[row * steady.stages..].iter_mut().zip(&self.stages) {
            *place = [stage.free.at, stage.sent[0].at, stage.sent[1].at];
            now = now.max(stage.free.at);
            sum += stage.free.at;
        }
        steady.sums[row] = sum;
        now
    }

    /// Tries periods after which the state seems to come back, or takes a mean.
    fn propose(&mut self, now: f64) {
        let tolerance = SAME * now;
        let (failed, then) = self.steady.failed;
        let least = if (self.steady.periods - then) as usize <= 3 * self.steady.most { failed + 1 } else { 1 };
        if let Some(c) = self.steady.comes_back(least, tolerance) {
            // Not where too few periods are left for the trial and more.
            if self.stages.iter().all(|s| s.cursor.periods() as usize >= 2 * c) && self.start(c) {
                self.choices = Choices { limit: f64::INFINITY, tolerance };
                self.steady.trial = Some((c, c));
            }
        } else if self.steady.periods >= SETTLE {
            self.take_mean((now - self.steady.half) / f64::from(self.steady.periods - SETTLE / 2));
        }
    }

    /// Gives every time the rate that it had in the last c periods; `false` where it had none.
    fn start(&mut self, c: usize) -> bool {
        let back = c as u32 * self.steady.round;
        if !self.channels.start(back) {
            return false;
        }
        self.steady.sending.clear();
        for (s, stage) in self.stages.iter_mut().enumerate() {
            let (now, before) = (self.steady.ago(0, s), self.steady.ago(c, s));
            stage.free.rate = now[0] - before[0];
            stage.sent[0].rate = now[1] - before[1];
            stage.sent[1].rate = now[2] - before[2];
            stage.sending.rate = 0.0;
            self.steady.sending.push(stage.sending.at);
        }
        true
    }

    /// Whether the last c periods have added what the c before them added, and the next ones will.
    fn holds(&mut self, c: usize) -> bool {
        let tolerance = self.choices.tolerance;
        let same = |a: f64, b: f64| (a - b).abs() <= tolerance;
        let stage = |s: usize| {
            let [now, before, first] = [0, c, 2 * c].map(|ago| self.steady.ago(ago, s));
            let stage = &self.stages[s];
            let rates = [stage.free.rate, stage.sent[0].rate, stage.sent[1].rate];
            (0..3).all(|i| same(now[i] - before[i], rates[i]) && same(before[i] - first[i], rates[i]))
        };
        (0..self.stages.len()).all(stage) && self.channels.keep(c as u32 * self.steady.round, same)
    }

    /// Leaves out as many times c periods as are like the last c.
    fn leave_out(&mut self, c: usize) {
        let periods = self.stages.iter().map(|s| s.cursor.periods()).min().unwrap_or(0);
        let times = f64::from(periods / c as u32).min(self.choices.limit.floor());
        if times < 1.0 {
            return;
        }
        self.channels.postpone(|rate| times * rate);
        for (stage, before) in self.stages.iter_mut().zip(&self.steady.sending) {
            stage.free.at += times * stage.free.rate;
            stage.sent.iter_mut().for_each(|sent| sent.at += times * sent.rate);
            // What it waits for what it sends may grow from period to period.
            let sending = stage.sending.at - before;
            stage.sending.at += times * sending + stage.sending.rate * times * (times + 1.0) / 2.0;
        }
        self.drop_periods(times as u32 * c as u32);
    }

    /// Leaves out what is left, at so many seconds a period, with as much sending in a step as so far.
    fn take_mean(&mut self, seconds: f64) {
        let periods = self.stages.iter().map(|s| s.cursor.periods()).min().unwrap_or(0);
        if periods == 0 {
            return;
        }
        self.steady.mean = true;
        let all = seconds * f64::from(periods);
        self.channels.postpone(|_| all);
        for stage in &mut self.stages {
            let left_out = f64::from(periods) * f64::from(stage.cursor.period());
            stage.sending.at *= 1.0 + left_out / stage.played as f64;
            stage.free.at += all;
            stage.sent.iter_mut().for_each(|sent| sent.at += all);
        }
        self.drop_periods(periods);
    }

    fn drop_periods(&mut self, periods: u32) {
        self.stages.iter_mut().for_each(|s| s.cursor.leave_out(periods));
        self.steady.clear();
    }
}
