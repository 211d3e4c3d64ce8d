use super::*;
use crate::predict::fix;

fn llama70b() -> ModelFacts {
    ModelFacts {
        name: "llama".into(),
        layers: 80,
        heads: 64,
        kv_heads: 8,
        experts: 0,
        max_positions: Some(131072),
        parameters: 70_553_706_496,
    }
}

fn settled(text: &str, facts: &ModelFacts, devices: u64, batch: Option<u64>) -> Result<Settings, Impossible> {
    let job = Job {
        facts,
        devices,
        seq_len: None,
        global_batch: batch,
        stack: "megatron-core-2025",
        order: Order::STAGES_OUTSIDE,
    };
    settle(&fix::parse(text).unwrap(), &job)
}

fn refusal(text: &str, facts: &ModelFacts, devices: u64, batch: Option<u64>) -> String {
    settled(text, facts, devices, batch).unwrap_err().to_string()
}

#[test]
fn defaults_are_stated() {
    let s = settled("tp=8", &llama70b(), 64, Some(128)).unwrap();
    assert_eq!((s.layout.dp, s.layout.microbatches, s.layout.sp, s.seq_len), (8, 16, true, 4096));
    assert_eq!((s.layout.zero, s.layout.shard_group), (1, 8));
    let line = |key| s.lines.iter().find(|l| l.key == key).map(|l| (l.value.as_str(), l.default.as_str()));
    assert_eq!(line("tp"), Some(("8", "")));
    assert_eq!(line("dp"), Some(("8", "default: 64 devices over tp·cp·pp")));
    assert_eq!(line("sp"), Some(("1", "default: on with tp")));
    assert_eq!(s.mesh.unwrap().to_string(), "dp=8,tp=8,zero=1,shard_group=8");
    // Without a batch it is one sequence a data rank and micro-batch.
    assert_eq!(settled("tp=8,microbatches=3", &llama70b(), 64, None).unwrap().global_batch, 24);
    // Two of batch, micro-batch and count give the third.
    assert_eq!(settled("tp=8,microbatches=4", &llama70b(), 64, Some(128)).unwrap().layout.micro_batch, 4);
}

#[test]
fn a_stack_that_shares_parameters_shares_them_by_default() {
    let facts = llama70b();
    let job = Job {
        facts: &facts,
        devices: 8,
        seq_len: None,
        global_batch: None,
        stack: "torchtitan-2024",
        order: Order::STAGES_OUTSIDE,
    };
    let s = settle(&Fix::default(), &job).unwrap();
    assert_eq!((s.layout.zero, s.layout.shard_group, s.mesh.unwrap().to_string().as_str()), (3, 8, "fsdp=8"));
}

#[test]
fn heads_that_cannot_be_split_name_degrees_that_can() {
    let e = refusal("tp=7", &llama70b(), 56, None);
    assert!(e.contains("64 heads (8 kv heads); tp can be 1,2,4,8,16,32,64"), "{e}");
    let six = ModelFacts { heads: 6, kv_heads: 2, ..llama70b() };
    assert!(refusal("tp=4", &six, 4, None).ends_with("tp can be 1,2,3,6"));
}

#[test]
fn degrees_must_multiply_to_the_devices() {
    let e = refusal("tp=8,dp=4", &llama70b(), 64, None);
    assert!(e.contains("= 32, not 64 devices; dp would be 8"), "{e}");
    let e = refusal("tp=8,cp=3", &llama70b(), 64, None);
    assert!(e.contains("= 24 does not divide 64 devices; the product can be 1,2,4,8,16,32,64"), "{e}");
}

#[test]
fn batches_must_divide() {
    let e = refusal("tp=8,mbs=3", &llama70b(), 64, Some(128));
    assert!(e.contains("dp=8·mbs=3 = 24; the batch could be 120 or 144, or mbs 1,2,4,8,16"), "{e}");
    let e = refusal("tp=8", &llama70b(), 64, Some(3));
    assert!(e.contains("the batch could be 8"), "{e}");
    let e = refusal("tp=8,mbs=2,microbatches=5", &llama70b(), 64, Some(128));
    assert!(e.contains("= 80 sequences, not the global batch of 128; with mbs=2, microbatches would be 8"), "{e}");
}

#[test]
fn experts_have_a_mesh_of_their_own() {
    let moe = ModelFacts { experts: 128, heads: 32, kv_heads: 4, ..llama70b() };
    let s = settled("tp=2,ep=8", &moe, 16, None).unwrap();
    assert_eq!((s.layout.etp, s.layout.expert_data_ranks()), (2, Some(1)));
    // ep swallows tp inside experts, and no mesh of axes says so.
    let s = settled("tp=2,ep=16", &moe, 16, None).unwrap();
    assert_eq!((s.layout.etp, s.layout.dp), (1, 8));
    assert!(s.mesh.unwrap_err().to_string().contains("ep=16 over dp=8"));
    assert!(refusal("ep=3", &moe, 16, None).contains("ep can be 1,2,4,8,16,32,64,128"));
    let e = refusal("ep=16,etp=2", &moe, 16, None);
    assert!(e.contains("with etp=2, ep can be 1,2,4,8"), "{e}");
    assert!(refusal("ep=2", &llama70b(), 16, None).contains("no experts"));
}

#[test]
fn positions_must_split() {
    let job = |seq_len| Job {
        facts: FACTS,
        devices: 12,
        seq_len: Some(seq_len),
        global_batch: None,
        stack: "x",
        order: Order::STAGES_OUTSIDE,
    };
    const FACTS: &ModelFacts = &ModelFacts {
        name: String::new(),
        layers: 2,
        heads: 12,
        kv_heads: 4,
        experts: 0,
        max_positions: None,
        parameters: 0,
    };
    let of = |text: &str, s| settle(&fix::parse(text).unwrap(), &job(s)).map_err(|e| e.to_string());
    assert!(of("cp=3", 12).is_ok());
    let e = of("cp=3", 16).unwrap_err();
    assert!(e.contains("cp can be 1,2,4,8"), "{e}");
    assert_eq!(of("tp=4,cp=3,cp_method=ulysses", 24).map(|s| s.layout.cp), Ok(3));
    let e = of("tp=12,cp=1", 14).unwrap_err();
    assert!(e.contains("use sp=0, or tp of 1,2,7,14"), "{e}");
    assert_eq!(of("tp=12,cp=1,sp=0", 14).map(|s| s.layout.sp), Ok(false));
    assert!(of("sp=1", 24).unwrap_err().contains("tp is 1"));
}

#[test]
fn heads_of_a_rank_must_split_for_ulysses() {
    let e = refusal("tp=16,cp=8,cp_method=ulysses", &llama70b(), 128, None);
    assert!(e.contains("4 heads a rank") && e.contains("cp of 1,2,4"), "{e}");
}

#[test]
fn sharding_must_not_contradict_itself() {
    for (text, part) in [
        ("zero=0,shard_group=8", "zero=0 shares nothing"),
        ("zero=3,shard_group=3", "shard_group can be 1,2,4,8,16,32,64"),
        ("zero=1,shard_group=128", "must divide the dp·cp = 64 ranks"),
        ("zero=1,keep=1", "only FSDP keeps gathered parameters"),
    ] {
        let e = refusal(text, &llama70b(), 64, None);
        assert!(e.contains(part), "{text}: {e}");
    }
    let s = settled("keep=1", &llama70b(), 64, None).unwrap();
    assert_eq!((s.layout.zero, s.layout.keep), (3, true));
    assert_eq!(settled("shard_group=1", &llama70b(), 64, None).unwrap().layout.zero, 0);
}

#[test]
fn pipelines_have_layers_for_their_chunks() {
    assert!(refusal("vpp=2", &llama70b(), 8, None).contains("pp is 1"));
    assert!(refusal("pp=8,vpp=11", &llama70b(), 8, None).contains("88 chunks are more than the 80 layers"));
    // A schedule and chunks that it does not have contradict each other.
    assert!(refusal("pp=8,vpp=5,schedule=1f1b", &llama70b(), 8, None).contains("use schedule=interleaved"));
    assert!(refusal("pp=8,vpp=5,schedule=zb-v", &llama70b(), 8, None).contains("set vpp=2"));
    assert_eq!(settled("pp=8,schedule=zb-v", &llama70b(), 8, None).unwrap().layout.vpp, 2);
    let s = settled("pp=8,vpp=5", &llama70b(), 8, None).unwrap();
    assert_eq!(s.layout.schedule, Schedule::Interleaved);
    assert!(refusal("recompute=layers:81", &llama70b(), 8, None).contains("80 layers"));
}

#[test]
fn divisors_rise() {
    assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
    assert_eq!(divisors(1), [1]);
    assert_eq!(divisors(7), [1, 7]);
}

proptest::proptest! {
    #[test]
    fn what_is_settled_holds_together(tp in 1u64..20, cp in 1u64..5, dp in 1u64..9, mbs in 1u64..5, m in 1u64..5, zero in 0u8..4) {
        let text = format!("tp={tp},cp={cp},dp={dp},mbs={mbs},microbatches={m},zero={zero}");
        if let Ok(s) = settled(&text, &llama70b(), tp * cp * dp, None) {
            proptest::prop_assert_eq!(s.layout.devices(), tp * cp * dp);
            proptest::prop_assert_eq!(s.layout.global_batch(), s.global_batch);
            proptest::prop_assert_eq!(64 % tp, 0);
        }
    }
}
