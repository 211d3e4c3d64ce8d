//! Readers of tables, and groups whose times follow from their links alone.

use super::{Kind, TableError, Tables};

const OUTPUT: &str = "\
# nccl-tests version 2.13.0
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor)
# Using devices
#  Rank  0 Group  0 Pid   1 on      node1 device  0 [0x07] NVIDIA H100
#  Rank  1 Group  0 Pid   2 on      node1 device  1 [0x0b] NVIDIA H100
#  Rank  2 Group  0 Pid   3 on      node2 device  0 [0x07] NVIDIA H100
#  Rank  3 Group  0 Pid   4 on      node2 device  1 [0x0b] NVIDIA H100
#
#                                                       out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.13    0.00    0.00      0     0.12    0.00    0.00      0
        1024           256     float     sum      -1    47.50    0.02    0.03      0    46.00    0.02    0.03      0
# Out of bounds values : 0 OK
";

#[test]
fn output_of_nccl_tests_says_operation_ranks_and_nodes() {
    let rows = Tables::from_nccl_tests(OUTPUT).unwrap();
    assert_eq!(rows.len(), 1);
    let r = rows[0];
    assert_eq!((r.kind, r.ranks, r.nodes, r.bytes), (Kind::AllReduce, 4, 2, 1024.0));
    assert!((r.seconds - 47.5e-6).abs() < 1e-12);
    // Two runs one after the other: the second counts its own ranks.
    let two = format!("{OUTPUT}{}", OUTPUT.replace("all_reduce_perf", "alltoall_perf").replace("node2", "node1"));
    let rows = Tables::from_nccl_tests(&two).unwrap();
    assert_eq!((rows[1].kind, rows[1].ranks, rows[1].nodes), (Kind::AllToAll, 4, 1));
}

#[test]
fn output_that_lacks_something_says_what_and_where() {
    let no_name = OUTPUT.replace("# Collective test starting: all_reduce_perf\n", "");
    assert!(matches!(Tables::from_nccl_tests(&no_name), Err(TableError::Unnamed { line: 12, .. })));
    let no_ranks = OUTPUT.replace("Rank", "rank");
    assert!(matches!(Tables::from_nccl_tests(&no_ranks), Err(TableError::Unnamed { line: 13, .. })));
    let bad_time = OUTPUT.replace("47.50", "N/A");
    assert!(matches!(Tables::from_nccl_tests(&bad_time), Err(TableError::Number { line: 14, .. })));
    assert!(matches!(Tables::from_nccl_tests("# nothing\n"), Err(TableError::Empty { .. })));
}

#[test]
fn csv_is_read_by_column_names() {
    let rows = Tables::from_csv("us,bytes,op,ranks,nodes\n10,512,all_gather,16,2\n").unwrap();
    assert_eq!((rows[0].kind, rows[0].ranks, rows[0].nodes), (Kind::AllGather, 16, 2));
    assert!((rows[0].seconds - 1e-5).abs() < 1e-15);
}

#[test]
fn bad_csv_names_its_line() {
    let read = Tables::from_csv;
    let head = "op,ranks,bytes,us\n";
    assert!(matches!(read("op,ranks,us\n"), Err(TableError::NoColumn { line: 1, column: "bytes", .. })));
    assert!(matches!(read(head), Err(TableError::Empty { .. })));
    assert!(matches!(read(""), Err(TableError::Empty { .. })));
    let of = |row: &str| read(&format!("{head}all_reduce,2,512,5\n{row}\n"));
    assert!(matches!(of("all_reduce,2,512"), Err(TableError::Short { line: 3, column: "us", .. })));
    assert!(matches!(of("broadcast,2,512,5"), Err(TableError::Operation { line: 3, .. })));
    assert!(matches!(of("all_reduce,1,512,5"), Err(TableError::Ranks { line: 3, ranks: 1, .. })));
    for time in ["-5", "0", "NaN", "inf", "5us", ""] {
        assert!(matches!(
            of(&format!("all_reduce,2,512,{time}")),
            Err(TableError::Number { line: 3, column: "us", .. })
        ));
    }
    let text = of("all_reduce,2,512,5us").unwrap_err().to_string();
    assert_eq!(text, "line 3: us `5us` is not a positive number");
}

#[test]
fn names_go_both_ways() {
    for kind in Kind::MEASURED {
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
        assert_eq!(Kind::from_name(&format!("{}_perf", kind.name())), Some(kind));
    }
    assert_eq!(Kind::from_name("broadcast"), None);
}
