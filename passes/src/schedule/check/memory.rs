//! What stands in the buffers of a function, step by step.

use super::Fault;
use autoshard_ir::core::Type;
use autoshard_ir::program::{Buf, ProgramFunction, Step};
use autoshard_ir::Mesh;
use std::collections::{BTreeMap, HashMap, HashSet};

/// How many bytes a step reads of a buffer.
#[derive(Clone, Copy)]
pub(super) struct Need {
    bytes: usize,
    /// The buffer must have exactly this size.
    exact: bool,
}

impl Need {
    pub(super) fn exactly(bytes: usize) -> Need {
        Need { bytes, exact: true }
    }

    pub(super) fn at_least(bytes: usize) -> Need {
        Need { bytes, exact: false }
    }
}

/// Physical memory of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Frame,
    Param(usize),
    Result(usize),
}

/// A range of physical memory that a step reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// As the step names it.
    pub(super) buf: Buf,
    space: Space,
    start: usize,
    pub(super) bytes: usize,
}

impl Region {
    pub(super) fn same_start(&self, other: &Region) -> bool {
        self.space == other.space && self.start == other.start
    }

    /// First byte after the region. Empty buffers take one byte, so that each has its own place.
    fn end(&self) -> usize {
        self.start.saturating_add(self.bytes.max(1))
    }

    fn overlaps(&self, other: &Region) -> bool {
        self.space == other.space && self.start < other.end() && other.start < self.end()
    }
}

/// What stands in the buffers of one function between two steps.
pub(super) struct Memory<'a> {
    function: &'a ProgramFunction,
    mesh: &'a Mesh,
    /// Parameter that holds each result.
    in_place: &'a [Option<usize>],
    /// Bytes of parameters and results; in a consumed parameter, of what stands there.
    param_bytes: Vec<usize>,
    result_bytes: Vec<usize>,
    /// Call that consumed each parameter.
    param_lost: Vec<Option<usize>>,
    /// What stands in the frame, by offset. Regions do not overlap.
    frame: BTreeMap<usize, Region>,
    /// Offsets of what stood there, with what became of it.
    lost: HashMap<usize, Lost>,
    /// Collectives under way, in the order of their issues.
    pending: Vec<Pending>,
    /// Collectives that were waited for.
    waited: HashSet<usize>,
    /// Step that wrote each result.
    pub(super) results: Vec<Option<usize>>,
    /// Current step.
    pub(super) step: usize,
}

/// What became of a buffer, with the step.
#[derive(Clone, Copy)]
enum Lost {
    Overwritten(usize),
    Consumed(usize),
}

/// A collective under way.
struct Pending {
    issue: usize,
    input: Region,
    output: Region,
}

impl<'a> Memory<'a> {
    pub(super) fn new(function: &'a ProgramFunction, in_place: &'a [Option<usize>], mesh: &'a Mesh) -> Memory<'a> {
        let bytes = |of: &[(String, Type)]| of.iter().map(|(_, t)| mesh.local_bytes(t)).collect();
        Memory {
            function,
            mesh,
            in_place,
            param_bytes: bytes(&function.params),
            result_bytes: bytes(&function.results),
            param_lost: vec![None; function.params.len()],
            pending: Vec::new(),
            waited: HashSet::new(),
            frame: BTreeMap::new(),
            lost: HashMap::new(),
            results: vec![None; function.results.len()],
            step: 0,
        }
    }

    pub(super) fn name(&self, buf: Buf) -> String {
        match buf {
            Buf::Frame(offset) => format!("frame+{offset}"),
            Buf::Param(i) => self.function.params.get(i).map_or(format!("parameter {i}"), |(n, _)| format!("%{n}")),
            Buf::Result(i) => self.function.results.get(i).map_or(format!("result {i}"), |(n, _)| format!("%{n}")),
        }
    }

    /// Where a result lives.
    fn home(&self, result: usize) -> Space {
        self.in_place[result].map_or(Space::Result(result), Space::Param)
    }

    /// The result that lives in a parameter.
    fn update_of(&self, param: usize) -> Option<usize> {
        self.in_place.iter().position(|p| *p == Some(param))
    }

    /// Whether a parameter is the function's own.
    fn consumed(&self, param: usize) -> bool {
        self.function.consumed.get(param).is_some_and(|c| *c)
    }

    /// The consumed parameter that a buffer is.
    fn own(&self, buf: Buf) -> Option<usize> {
        match buf {
            Buf::Param(i) if self.consumed(i) => Some(i),
            _ => None,
        }
    }

    /// The region that a step reads; it must stand, and no collective may be writing it.
    pub(super) fn read(&self, buf: Buf, need: Need) -> Result<Region, Fault> {
        let region = self.read_in_order(buf, need)?;
        match self.pending.iter().find(|p| p.output.overlaps(&region)) {
            Some(p) => Err(Fault::ReadBeforeWait { buffer: self.name(buf), issue: p.issue }),
            None => Ok(region),
        }
    }

    /// The region that a step reads after all collectives under way; it must stand.
    pub(super) fn read_in_order(&self, buf: Buf, need: Need) -> Result<Region, Fault> {
        let (space, start, has) = match buf {
            Buf::Param(i) => {
                let has = *self.param_bytes.get(i).ok_or(Fault::Missing { what: "parameter", index: i })?;
                if let Some(by) = self.update_of(i).and_then(|r| self.results[r]) {
                    return Err(Fault::ReadAfterUpdate { buffer: self.name(buf), by });
                }
                if let Some(by) = self.param_lost[i] {
                    return Err(Fault::ReadAfterConsumed { buffer: self.name(buf), by });
                }
                (Space::Param(i), 0, has)
            }
            Buf::Result(i) => {
                let has = *self.result_bytes.get(i).ok_or(Fault::Missing { what: "result", index: i })?;
                if self.results[i].is_none() {
                    return Err(Fault::ReadBeforeWrite { buffer: self.name(buf) });
                }
                (self.home(i), 0, has)
            }
            Buf::Frame(offset) => {
                self.in_frame(buf, offset, need.bytes)?;
                (Space::Frame, offset, self.standing(offset)?)
            }
        };
        if has < need.bytes || (need.exact && has > need.bytes) {
            return Err(Fault::Size { buffer: self.name(buf), has, expected: need.bytes });
        }
        // A reader sees the whole buffer: what is written over its tail is written over it.
        Ok(Region { buf, space, start, bytes: has })
    }

    /// Bytes that stand at an offset of the frame.
    fn standing(&self, offset: usize) -> Result<usize, Fault> {
        if let Some(region) = self.frame.get(&offset) {
            return Ok(region.bytes);
        }
        let buffer = self.name(Buf::Frame(offset));
        Err(match self.lost.get(&offset) {
            Some(Lost::Overwritten(by)) => Fault::Overwritten { buffer, by: *by },
            Some(Lost::Consumed(by)) => Fault::ReadAfterConsumed { buffer, by: *by },
            None => Fault::ReadBeforeWrite { buffer },
        })
    }

    fn in_frame(&self, buf: Buf, offset: usize, bytes: usize) -> Result<(), Fault> {
        let end = offset.saturating_add(bytes);
        if end > self.function.frame {
            return Err(Fault::Frame { buffer: self.name(buf), end, frame: self.function.frame });
        }
        Ok(())
    }

    /// The region that a step writes; nothing changes yet.
    pub(super) fn place(&self, buf: Buf, bytes: usize) -> Result<Region, Fault> {
        let region = match buf {
            Buf::Frame(offset) => {
                self.in_frame(buf, offset, bytes)?;
                Region { buf, space: Space::Frame, start: offset, bytes }
            }
            Buf::Param(i) if self.consumed(i) => {
                let has = self.mesh.local_bytes(&self.function.params[i].1);
                if bytes > has {
                    return Err(Fault::Size { buffer: self.name(buf), has, expected: bytes });
                }
                Region { buf, space: Space::Param(i), start: 0, bytes }
            }
            Buf::Param(_) | Buf::Result(_) => {
                let result = self.written(buf)?;
                let expected = self.result_bytes[result];
                if bytes != expected {
                    return Err(Fault::Size { buffer: self.name(buf), has: expected, expected: bytes });
                }
                Region { buf, space: self.home(result), start: 0, bytes }
            }
        };
        self.free(&region)?;
        Ok(region)
    }

    /// No collective under way touches what is written.
    fn free(&self, region: &Region) -> Result<(), Fault> {
        for p in &self.pending {
            let touched = [(&p.output, "writes"), (&p.input, "reads")];
            if let Some((_, does)) = touched.into_iter().find(|(r, _)| r.overlaps(region)) {
                return Err(Fault::WriteBeforeWait { buffer: self.name(region.buf), issue: p.issue, does });
            }
        }
        Ok(())
    }

    /// A collective is under way.
    pub(super) fn issue(&mut self, input: Region, output: Region) {
        self.pending.push(Pending { issue: self.step, input, output });
    }

    /// A collective is complete.
    pub(super) fn wait(&mut self, issue: usize) -> Result<(), Fault> {
        let Some(at) = self.pending.iter().position(|p| p.issue == issue) else {
            let problem = match self.function.steps.get(issue) {
                _ if self.waited.contains(&issue) => "which has been waited for",
                Some(Step::Issue { .. }) => "which comes later",
                Some(_) => "which is no collective",
                None => "which does not exist",
            };
            return Err(Fault::Wait { issue, problem });
        };
        self.pending.remove(at);
        self.waited.insert(issue);
        Ok(())
    }

    /// The issue of a collective that is still under way.
    pub(super) fn under_way(&self) -> Option<usize> {
        self.pending.first().map(|p| p.issue)
    }

    /// Gives an argument to a callee; `others` are the call's other arguments and its results.
    pub(super) fn consume<'r>(
        &mut self,
        region: &Region,
        mut others: impl Iterator<Item = &'r Region>,
    ) -> Result<(), Fault> {
        let argument = self.name(region.buf);
        if let Some(other) = others.find(|o| o.overlaps(region)) {
            return Err(Fault::ConsumedTwice { argument, other: self.name(other.buf) });
        }
        self.free(region)?;
        match region.space {
            Space::Frame => {
                self.frame.remove(&region.start);
                self.lost.insert(region.start, Lost::Consumed(self.step));
            }
            Space::Param(p) if self.consumed(p) => self.param_lost[p] = Some(self.step),
            Space::Param(_) | Space::Result(_) => return Err(Fault::NotDonated { argument }),
        }
        Ok(())
    }

    /// The result that a step writes under this name: a parameter is written for its update.
    fn written(&self, buf: Buf) -> Result<usize, Fault> {
        match buf {
            Buf::Param(i) if i >= self.param_bytes.len() => Err(Fault::Missing { what: "parameter", index: i }),
            Buf::Param(i) => self.update_of(i).ok_or_else(|| Fault::ReadOnly { buffer: self.name(buf) }),
            Buf::Result(i) if i < self.result_bytes.len() => Ok(i),
            Buf::Result(index) | Buf::Frame(index) => Err(Fault::Missing { what: "result", index }),
        }
    }

    /// Two regions of one step must not overlap.
    pub(super) fn apart(&self, written: &Region, other: &Region) -> Result<(), Fault> {
        if written.overlaps(other) {
            return Err(Fault::Overlap { written: self.name(written.buf), other: self.name(other.buf) });
        }
        Ok(())
    }

    /// Writes a region.
    pub(super) fn write(&mut self, region: Region) -> Result<(), Fault> {
        if let Some(i) = self.own(region.buf) {
            self.param_bytes[i] = region.bytes;
            self.param_lost[i] = None;
            return Ok(());
        }
        if region.space != Space::Frame {
            let result = self.written(region.buf)?;
            if let Some(by) = self.results[result] {
                return Err(Fault::WrittenTwice { buffer: self.name(region.buf), by });
            }
            self.results[result] = Some(self.step);
            return Ok(());
        }
        // Regions in the frame do not overlap: the last that starts before the end may, and so on down.
        while let Some((start, old)) = self.frame.range(..region.end()).next_back() {
            if !old.overlaps(&region) {
                break;
            }
            let start = *start;
            self.frame.remove(&start);
            self.lost.insert(start, Lost::Overwritten(self.step));
        }
        self.frame.insert(region.start, region);
        Ok(())
    }
}
