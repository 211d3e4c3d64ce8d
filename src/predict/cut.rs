//! Where a model is cut into the chunks of pipeline stages.
//!
//! Layers are what is cut; embedding and head go with the first and the last chunk. Where nobody says how many
//! layers each stage has and they do not divide, launchers count the embedding and the head as a layer each
//! (Megatron's `account_for_embedding_in_pipeline_split` and `account_for_loss_in_pipeline_split`, Llama 3's
//! 126 layers on 16 stages), then the head as two (DeepSeek-V3's prediction layer beside it); where that does
//! not divide either, the ends are the short ones.

use super::{PredictError, Schedule};

/// The chunks of a pipeline's stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// By stage, by chunk in the order of the forward: calls as (function, count).
    pub stages: Vec<Vec<Vec<(usize, usize)>>>,
    /// By stage: its decoder layers.
    pub layers: Vec<u64>,
    /// How layers were spread where nobody said it and they do not divide.
    pub note: Option<String>,
}

impl Cut {
    /// Chunks of a stage.
    pub fn chunks(&self) -> usize {
        self.stages.first().map_or(1, Vec::len)
    }
}

/// Cuts a step's calls into pp·chunks parts. `calls` are (function, count) in order, `is_layer` says which
/// functions are decoder layers, `stated` how many layers each stage has, where that is known.
///
/// # Errors
/// More parts than layers and ends, or stated layers that are not the model's.
pub fn cut(
    calls: &[(usize, usize)],
    is_layer: &[bool],
    schedule: Schedule,
    (pp, vpp): (u64, u64),
    stated: Option<&[u64]>,
) -> Result<Cut, PredictError> {
    let all: Vec<usize> = calls.iter().flat_map(|(f, n)| std::iter::repeat_n(*f, *n)).collect();
    let first = all.iter().position(|f| is_layer[*f]).unwrap_or(0);
    // Layers behind the head predict further tokens and stay with it.
    let count = all[first..].iter().take_while(|f| is_layer[**f]).count();
    let chunks = chunks_of(schedule, vpp);
    let (sizes, note) = match stated {
        Some(stages) => (stated_parts(stages, count as u64, schedule, chunks)?, None),
        None => spread(count as u64, pp * chunks)?,
    };
    let mut at = first;
    let mut parts: Vec<Vec<usize>> = Vec::with_capacity(sizes.len());
    for n in &sizes {
        parts.push(all[at..at + *n as usize].to_vec());
        at += *n as usize;
    }
    if let Some(part) = parts.first_mut() {
        part.splice(0..0, all[..first].iter().copied());
    }
    if let Some(part) = parts.last_mut() {
        part.extend(&all[at..]);
    }
    let mut out = Cut { stages: vec![Vec::new(); pp as usize], layers: vec![0; pp as usize], note };
    for stage in 0..pp {
        for chunk in 0..chunks {
            let part = part_of(schedule, pp, stage, chunk);
            out.stages[stage as usize].push(together(&parts[part]));
            out.layers[stage as usize] += sizes[part];
        }
    }
    Ok(out)
}

/// Chunks of a stage: schedules in a V have two.
pub fn chunks_of(schedule: Schedule, vpp: u64) -> u64 {
    match schedule {
        Schedule::ZbV | Schedule::DualPipeV => 2,
        Schedule::Interleaved => vpp,
        Schedule::Naive | Schedule::GPipe | Schedule::OneFOneB | Schedule::ZbH1 => 1,
    }
}

/// The part that is a chunk of a stage, by the schedule that plays it.
fn part_of(schedule: Schedule, pp: u64, stage: u64, chunk: u64) -> usize {
    schedule.kind().part(pp as u32, stage as u32, chunk as u32) as usize
}

/// Layers by part, in the order of the forward.
fn spread(layers: u64, parts: u64) -> Result<(Vec<u64>, Option<String>), PredictError> {
    if layers.is_multiple_of(parts) {
        return Ok((vec![layers / parts; parts as usize], None));
    }
    for (head, words) in [(1, "the embedding and the head"), (2, "the embedding as one and the head as two")] {
        if (layers + 1 + head).is_multiple_of(parts) {
            let each = (layers + 1 + head) / parts;
            if each > head || (each == head && parts > 2) {
                let mut sizes = vec![each; parts as usize];
                sizes[0] -= 1;
                sizes[parts as usize - 1] -= head;
                let note = format!("{layers} layers on {parts} chunks: counted {words} as layers");
                return Ok((sizes, Some(note)));
            }
        }
    }
    if layers < parts.saturating_sub(2) {
        return Err(PredictError::Missing {
            entity: format!("{parts} chunks of {layers} layers"),
            what: "a layer for each chunk between the first and the last".to_string(),
            instead: "use fewer stages or chunks".to_string(),
        });
    }
    let (each, more) = (layers / parts, layers % parts);
    // One more for as many as it takes in the middle, so that the ends are short.
    let skip = (parts - more).div_ceil(2);
    let sizes = (0..parts).map(|i| each + u64::from((skip..skip + more).contains(&i))).collect();
    let note = format!("{layers} layers on {parts} chunks: {more} in the middle have {}, the others {each}", each + 1);
    Ok((sizes, Some(note)))
}

/// Layers by part, given those of each stage. A stage's short chunk is the first on the first stage, where the
/// embedding is, and the last elsewhere.
fn stated_parts(stages: &[u64], layers: u64, schedule: Schedule, chunks: u64) -> Result<Vec<u64>, PredictError> {
    let pp = stages.len() as u64;
    let total: u64 = stages.iter().sum();
    if total != layers {
        return Err(PredictError::Missing {
            entity: format!("layers_per_stage with {total} layers"),
            what: format!("the {layers} layers of the model"),
            instead: "state all layers of the decoder, and no others".to_string(),
        });
    }
    let mut parts = vec![0; (pp * chunks) as usize];
    for (stage, n) in stages.iter().enumerate() {
        for chunk in 0..chunks {
            let (each, more) = (n / chunks, n % chunks);
            let long = if stage == 0 { chunk >= chunks - more } else { chunk < more };
            parts[part_of(schedule, pp, stage as u64, chunk)] = each + u64::from(long);
        }
    }
    Ok(parts)
}

/// Equal neighbours together.
fn together(calls: &[usize]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::new();
    for f in calls {
        match out.last_mut() {
            Some((last, n)) if last == f => *n += 1,
            _ => out.push((*f, 1)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions: embedding, layer, head.
    const LAYERS: [bool; 3] = [false, true, false];

    fn layers(count: usize, schedule: Schedule, pp: u64, vpp: u64) -> Cut {
        cut(&[(0, 1), (1, count), (2, 1)], &LAYERS, schedule, (pp, vpp), None).unwrap()
    }

    #[test]
    fn embedding_and_head_count_as_layers_where_layers_do_not_divide() {
        assert_eq!(layers(32, Schedule::OneFOneB, 4, 1).layers, [8; 4]);
        let c = layers(126, Schedule::Interleaved, 16, 8);
        assert_eq!((c.layers[0], c.layers[1], c.layers[15]), (7, 8, 7));
        assert_eq!(c.stages[0][0], [(0, 1)]);
        assert_eq!(c.stages[15][7], [(2, 1)]);
        assert_eq!(layers(61, Schedule::Interleaved, 8, 2).layers, [7, 8, 8, 8, 8, 8, 8, 6]);
        assert_eq!(layers(70, Schedule::OneFOneB, 12, 1).layers, [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]);
        assert_eq!(layers(33, Schedule::OneFOneB, 4, 1).layers, [8, 9, 9, 7]);
        assert_eq!(layers(34, Schedule::OneFOneB, 5, 1).layers, [6, 7, 7, 7, 7]);
        assert_eq!(layers(36, Schedule::OneFOneB, 5, 1).layers, [7, 7, 8, 7, 7]);
    }

    #[test]
    fn stated_layers_are_kept_and_a_v_comes_back() {
        let calls = [(0, 1), (1, 10), (2, 1)];
        let c = cut(&calls, &LAYERS, Schedule::Interleaved, (2, 2), Some(&[4, 6])).unwrap();
        assert_eq!(c.stages, [[vec![(0, 1), (1, 2)], vec![(1, 2)]], [vec![(1, 3)], vec![(1, 3), (2, 1)]]]);
        let c = cut(&[(0, 1), (1, 8), (2, 1)], &LAYERS, Schedule::ZbV, (2, 1), None).unwrap();
        assert_eq!(c.stages[0], [vec![(0, 1), (1, 2)], vec![(1, 2), (2, 1)]]);
        assert!(cut(&calls, &LAYERS, Schedule::OneFOneB, (2, 1), Some(&[4, 5])).is_err());
        assert!(cut(&[(0, 1), (1, 2), (2, 1)], &LAYERS, Schedule::OneFOneB, (8, 1), None).is_err());
    }
}
