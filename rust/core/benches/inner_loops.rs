//! The inner loops, one by one: encode, append, seam, stitch, collate.
//!
//! With `ABUT_TOKENIZERS` set, its `qwen3` is taken; else the tokenizer that ships with abut, whose
//! vocabulary of 512 is too small for figures that mean anything.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/support/random/rng.rs"]
#[allow(dead_code)]
mod rng;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abut_core::{
    AddedMode, Batch, Call, Columns, Dimensions, OnDrift, Overrides, Part, Provenance, Row,
    Tokenizer, Trajectory, collate, stitch,
};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rng::Rng;

const KILOBYTE: usize = 1_000;
const MEGABYTE: usize = 1_000_000;

fn tokenizer() -> Arc<Tokenizer> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets");
    let folder = std::env::var_os("ABUT_TOKENIZERS")
        .map_or_else(|| PathBuf::from(own), |folder| Path::new(&folder).join("qwen3"));
    let json = std::fs::read_to_string(folder.join("tokenizer.json")).unwrap();
    Arc::new(Tokenizer::from_json(&json, &Overrides::default()).unwrap())
}

/// `size` bytes or a few more of code, prose, Chinese and JSON, as words in random order.
fn mixed(seed: u64, size: usize) -> String {
    let words = [
        "def ",
        "return ",
        "self.",
        "    ",
        "(index, ",
        "values)",
        ":\n",
        " = ",
        "None\n",
        "# ",
        "the ",
        "of ",
        "tokenization ",
        "and ",
        "whether ",
        "it's ",
        "surprising",
        ". ",
        "However, ",
        "我们",
        "训练",
        "模型",
        "的",
        "。",
        "语言",
        "数据",
        "{\"id\": ",
        "\"name\"",
        ", ",
        "true",
        "},\n",
        "3.14159",
        "2024",
        "[1, 2]",
        "\t",
        "\n\n",
        "é",
        "ß",
        "🙂",
        "->",
    ];
    let mut random = Rng(seed);
    let mut text = String::with_capacity(size + 16);
    while text.len() < size {
        if random.below(8) == 0 {
            let word = (0..=random.below(8)).map(|_| char::from(b"etaoinshrdlu"[random.below(12)]));
            text.extend(word);
            text.push(' ');
        } else {
            text.push_str(words[random.below(words.len())]);
        }
    }
    text
}

fn encode(criterion: &mut Criterion) {
    let tokenizer = tokenizer();
    let mut group = criterion.benchmark_group("encode");
    group.sample_size(20);
    for size in [KILOBYTE, MEGABYTE] {
        let mut seed = 0;
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(format!("{size} bytes, new each time"), |bencher| {
            let next = || {
                seed += 1;
                mixed(seed, size)
            };
            bencher.iter_batched(
                next,
                |text| tokenizer.encode(&text, AddedMode::Parse).unwrap(),
                BatchSize::PerIteration,
            );
        });
    }
}

fn append(criterion: &mut Criterion) {
    let tokenizer = tokenizer();
    let mut group = criterion.benchmark_group("append 100 bytes");
    let pieces: Vec<String> = (0..64).map(|seed| mixed(seed, 100)).collect();
    for size in [KILOBYTE, MEGABYTE] {
        group.bench_function(format!("to an open text of {size} bytes"), |bencher| {
            let open = |text: &str| {
                let mut trajectory = Trajectory::new(tokenizer.clone());
                trajectory.append_parts(&[Part::content(text)], Provenance::Env).unwrap();
                trajectory
            };
            let text = mixed(1, size);
            let mut trajectory = open(&text);
            let (mut next, mut grown) = (0, 0);
            bencher.iter_custom(|rounds| {
                let mut taken = std::time::Duration::ZERO;
                for _ in 0..rounds {
                    next = (next + 1) % pieces.len();
                    let part = Part::content(&pieces[next]);
                    let began = std::time::Instant::now();
                    black_box(trajectory.append_parts(&[part], Provenance::Env).unwrap());
                    taken += began.elapsed();
                    grown += 100;
                    if grown >= size {
                        (trajectory, grown) = (open(&text), 0);
                    }
                }
                taken
            });
        });
    }
}

/// One character after the other, to a run that has no anchor.
fn grow(criterion: &mut Criterion) {
    const CHARS: usize = 10_000;
    let tokenizer = tokenizer();
    let mut group = criterion.benchmark_group(format!("append {CHARS} characters, one by one"));
    group.sample_size(10);
    let mut random = Rng(5);
    let letters = (0..CHARS).map(|_| char::from(b"etaoinshrdlu"[random.below(12)])).collect();
    let runs: [(&str, String); 3] =
        [("letters", letters), ("one letter", "a".repeat(CHARS)), ("emoji", "😀".repeat(CHARS))];
    for (name, text) in runs {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut trajectory = Trajectory::new(tokenizer.clone());
                let mut buffer = [0; 4];
                for c in text.chars() {
                    let part = Part::content(c.encode_utf8(&mut buffer));
                    black_box(trajectory.append_parts(&[part], Provenance::Env).unwrap());
                }
                trajectory
            });
        });
    }
}

fn seam(criterion: &mut Criterion) {
    let tokenizer = tokenizer();
    let mut group = criterion.benchmark_group("seam");
    let (whole, right) = (mixed(1, MEGABYTE), mixed(2, 100));
    for size in [KILOBYTE, MEGABYTE] {
        // Both end on the same run of characters, which is what the time depends on.
        let begin = (whole.len() - size..whole.len()).find(|&at| whole.is_char_boundary(at));
        let left = &whole[begin.unwrap()..];
        group.bench_function(format!("behind {size} bytes"), |bencher| {
            bencher.iter(|| tokenizer.seam(black_box(left), &right, AddedMode::Parse).unwrap());
        });
        group.bench_function(format!("is_additive behind {size} bytes"), |bencher| {
            bencher
                .iter(|| tokenizer.is_additive(black_box(left), &right, AddedMode::Parse).unwrap());
        });
    }
}

fn join(criterion: &mut Criterion) {
    let (calls, tokens) = (128, 69_000);
    let mut random = Rng(3);
    let ids: Vec<i64> =
        (0..tokens).map(|_| i64::try_from(random.below(150_000)).unwrap()).collect();
    let logprobs = vec![-0.5_f32; tokens];
    let recorded: Vec<Call<'_>> = (0..calls)
        .map(|call| {
            let (begin, end) = (call * tokens / calls, (call + 1) * tokens / calls);
            let middle = usize::midpoint(begin, end);
            Call {
                prompt_ids: &ids[..middle],
                completion_ids: &ids[middle..end],
                logprobs: &logprobs[middle..end],
            }
        })
        .collect();
    criterion.bench_function("stitch 128 calls up to 69000 tokens", |bencher| {
        bencher.iter(|| stitch(black_box(&recorded), OnDrift::Error, None).unwrap());
    });
}

fn pad(criterion: &mut Criterion) {
    let (rows, tokens) = (64, 8_192);
    let mut random = Rng(4);
    let columns: Vec<Columns> = (0..rows)
        .map(|row| {
            let completion = tokens - 1_024 - row % 4;
            let mut ids = (0..1_024 + completion).map(|_| i64::try_from(random.below(150_000)));
            Columns {
                prompt_ids: ids.by_ref().take(1_024).collect::<Result<_, _>>().unwrap(),
                completion_ids: ids.collect::<Result<_, _>>().unwrap(),
                logprobs: vec![-0.5; completion],
                env_mask: vec![1; completion],
            }
        })
        .collect();
    let rows: Vec<Row<'_>> = columns
        .iter()
        .map(|row| Row {
            prompt_ids: &row.prompt_ids,
            completion_ids: &row.completion_ids,
            logprobs: &row.logprobs,
            env_mask: &row.env_mask,
        })
        .collect();
    let Dimensions { rows: count, prompt_len, completion_len } = Dimensions::of(&rows);
    let (prompts, completions) = (count * prompt_len, count * completion_len);
    let mut ids = (vec![0; prompts], vec![0; completions]);
    let mut masks = (vec![0; prompts], vec![0; completions], vec![0; completions]);
    let mut logprobs = vec![0.0; completions];
    criterion.bench_function("collate 64 x 8192 tokens", |bencher| {
        bencher.iter(|| {
            let mut batch = Batch {
                prompt_ids: &mut ids.0,
                prompt_mask: &mut masks.0,
                completion_ids: &mut ids.1,
                completion_mask: &mut masks.1,
                logprobs: &mut logprobs,
                env_mask: &mut masks.2,
            };
            collate(black_box(&rows), 0, &mut batch).unwrap();
        });
    });
}

criterion_group!(inner_loops, encode, append, grow, seam, join, pad);
criterion_main!(inner_loops);
