//! The model of `tokenizers` is made where the fast encoder cannot do the work, and not before.

use super::*;
use crate::tokenizer::AddedMode;

/// The tokenizers that have a fast encoder, byte-level and SentencePiece's.
fn all() -> Vec<Tokenizer> {
    files().iter().chain(&large("mistral_v3")).map(load).collect()
}

#[test]
fn loading_encoding_and_decoding_make_none() {
    for tokenizer in all() {
        assert_eq!(tokenizer.profile().encoder, "fast");
        let ids = tokenizer.encode("wörtlich: 你好\n<|im_end|>", AddedMode::Parse).expect("tokens");
        assert!(!tokenizer.decode_bytes(&ids).expect("bytes").is_empty());
        assert!(tokenizer.token_to_id("<|im_end|>").is_none_or(|id| ids.contains(&id)));
        assert!(!tokenizer.pipeline.model.has_hf());
    }
}

#[test]
fn text_that_only_tokenizers_can_write_has_its_model_made_at_once() {
    let mut file = files().remove(0);
    file["pre_tokenizer"] = json!({"type": "Whitespace"});
    let tokenizer = load(&file);
    assert!(tokenizer.pipeline.model.has_hf() && tokenizer.pipeline.model.parts().is_none());
}

#[test]
fn a_model_by_its_parts_has_the_texts_and_ids_of_the_whole_one() {
    use tokenizers::Model;
    for tokenizer in all() {
        let model = &tokenizer.pipeline.model;
        let whole = model.hf();
        assert_eq!(model.vocab_size(), whole.get_vocab_size());
        assert_eq!(model.entries().count(), whole.get_vocab_size());
        for (text, id) in model.entries() {
            assert_eq!(whole.token_to_id(&text), Some(id));
            assert_eq!(model.token_to_id(&text), Some(id));
            assert_eq!(model.id_to_token(id).as_deref(), Some(text.as_ref()));
        }
        assert_eq!(model.token_to_id("no such entry"), None);
        assert_eq!(model.id_to_token(u32::MAX), None);
    }
}

#[test]
fn tokens_stay_apart_as_tokenizers_leaves_them() {
    let (mut apart, mut merged) = (0, 0);
    for mut tokenizer in all() {
        let parts = tokenizer.pipeline.model.parts().expect("they are known");
        // Any two, which seldom merge, and the halves of merges, which mostly do.
        let ids: Vec<u32> = parts.entries.iter().map(|(_, id)| id).collect();
        let halves = parts.merges.iter().step_by(parts.merges.len().div_ceil(500));
        let mut pairs: Vec<(u32, u32)> = halves.map(|merge| (merge.left, merge.right)).collect();
        let mut rng = Rng(3);
        let mut any = || ids[rng.below(ids.len())];
        pairs.extend((0..500).map(|_| (any(), any())));
        for (left, right) in pairs {
            let fast = tokenizer.fast.take().expect("it is in use");
            let expected = tokenizer.stay_apart(left, right);
            if let Some(found) = fast.stay_apart(left, right) {
                let texts = [left, right].map(|id| tokenizer.pipeline.model.id_to_token(id));
                // Unknown tokens and bytes stay apart in no case: see `Tokenizer::stay_apart`.
                assert!(found == expected || !expected, "{texts:?}");
            }
            tokenizer.fast = Some(fast);
            assert_eq!(tokenizer.stay_apart(left, right), expected);
            *if expected { &mut apart } else { &mut merged } += 1;
        }
    }
    assert!(apart > 300 && merged > 300, "{apart} {merged}");
}
