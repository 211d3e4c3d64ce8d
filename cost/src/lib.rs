//! What hardware and software cost: sizes in, seconds out.
//!
//! A [`device::Device`] computes, a [`cluster::Cluster`] joins devices by tiers of links, a
//! [`layout::Placement`] says where the ranks of a group sit on them. [`kernels`] times products, attention
//! and loops on a device, [`collectives`] times messages between the ranks of a group, and [`sim`] plays
//! tasks that compete for streams and links; [`schedule`] puts the steps of pipeline stages in order and
//! plays them; [`checkpointing`] says how far apart a chain of blocks keeps its inputs. A
//! [`stack::Stack`] is what a training framework does with all of this, [`goodput`] what failures leave of a
//! job's time. Nothing here knows a graph, a file or JSON.

pub mod checkpointing;
pub mod cluster;
pub mod collectives;
pub mod device;
pub mod goodput;
pub mod kernels;
pub mod layout;
pub mod schedule;
pub mod sim;
pub mod stack;
