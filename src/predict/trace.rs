//! The timeline of a step, for people to look at.

use super::predictor::{Job, Predictor};
use super::PredictError;
use autoshard_passes::predict::step::Scratch;
use autoshard_passes::predict::trace::{Event, Recorder};

impl Predictor {
    /// What runs when in a step. Without a pipeline two micro-batches at most are played, and those that repeat
    /// them are one event; a pipeline's steps are all told.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub fn trace(&self, job: &Job) -> Result<Vec<Event>, PredictError> {
        let ready = self.prepare(job)?;
        let mut scratch = Scratch::default();
        scratch.recorder = Some(Recorder { names: ready.names(), ..Recorder::default() });
        ready.play(job, job.stack, &mut scratch, false)?;
        Ok(scratch.recorder.map(|r| r.events).unwrap_or_default())
    }
}
