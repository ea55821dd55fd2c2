//! Reading `tokenizer.json` without the settings that would make encoding inexact: no truncation, no
//! padding, no post-processor, nothing random.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::ModelWrapper;

use super::added::{AddedToken, Overrides, RawAddedToken};
use super::bpe::Bpe;
use super::guard::{caught, unreadable};
use super::model::Model;
use super::model_file::{BpeFile, ModelFile};
use super::vocab::Check;
use crate::error::{Error, Result};

/// The parts of the file that matter here. Truncation, padding and the post-processor are left
/// out on purpose: assembly never uses them.
#[derive(Deserialize)]
struct File<M> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<RawAddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: M,
}

/// Settings of the model that decide how ids map to bytes, and whether it is deterministic.
#[derive(Deserialize, Default)]
pub(crate) struct ModelSettings {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub dropout: Option<f64>,
    pub alpha: Option<f64>,
    pub nbest_size: Option<i64>,
    #[serde(default)]
    pub byte_fallback: bool,
    pub unk_token: Option<String>,
    pub unk_id: Option<u32>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    #[serde(default)]
    vocab: Check,
}

/// Everything that was read.
pub(crate) struct Loaded {
    pub model: Model,
    pub settings: ModelSettings,
    pub added: Vec<AddedToken>,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub decoder: Value,
}

pub(crate) fn load(json: &str, overrides: &Overrides) -> Result<Loaded> {
    // Offsets in the file are held as `u32`.
    if u32::try_from(json.len()).is_err() {
        return Err(unreadable(format!("it has {} bytes, more than 4 GiB", json.len())));
    }
    // One pass is enough for a BPE model with nothing unusual in it, as in nearly all files. Other files
    // are read part by part, which also finds and names what is wrong with them.
    if let Some(loaded) = plain_bpe(json, overrides) {
        return loaded;
    }
    let file: File<&RawValue> =
        serde_json::from_str(json).map_err(|e| unreadable(e.to_string()))?;
    check_version(file.version.as_deref())?;
    let in_model = |e| unreadable(format!("model: {e}"));
    let mut settings: ModelSettings = serde_json::from_str(file.model.get()).map_err(in_model)?;
    if let Some((reason, hint)) = settings.vocab.0.take() {
        return Err(Error::Load { reason, hint });
    }
    refuse_randomness(&settings)?;
    check_prefix(&settings, file.model)?;
    // Merges that do not fit the vocabulary make `tokenizers` panic.
    let model: ModelWrapper = caught(|| serde_json::from_str(file.model.get()))
        .map_err(|_| {
            unreadable("model: the vocabulary and the merges contradict each other".to_owned())
        })?
        .map_err(in_model)?;
    let parts = match &model {
        ModelWrapper::BPE(bpe) => {
            serde_json::from_str(file.model.get()).ok().and_then(|file| Bpe::of(bpe, &file))
        }
        _ => None,
    };
    put_together(file, Model::read(model, parts), settings, overrides)
}

/// Reads a file with a usual BPE model in one pass; `None` for any other file.
fn plain_bpe(json: &str, overrides: &Overrides) -> Option<Result<Loaded>> {
    let file: File<BpeFile<'_>> = serde_json::from_str(json).ok()?;
    check_version(file.version.as_deref()).ok()?;
    let bpe = Bpe::new(&file.model)?;
    let settings = ModelSettings {
        kind: Some("BPE".to_owned()),
        byte_fallback: bpe.byte_fallback,
        unk_token: bpe.unk_token.clone(),
        end_of_word_suffix: bpe.end_of_word_suffix.clone(),
        ..ModelSettings::default()
    };
    Some(put_together(file, Model::of_parts(bpe), settings, overrides))
}

fn put_together<M>(
    file: File<M>,
    model: Model,
    settings: ModelSettings,
    overrides: &Overrides,
) -> Result<Loaded> {
    check_overrides(overrides, &file.added_tokens)?;
    Ok(Loaded {
        added: number_added_tokens(file.added_tokens, &model, overrides),
        model,
        settings,
        normalizer: file.normalizer,
        pre_tokenizer: file.pre_tokenizer,
        decoder: file.decoder,
    })
}

fn check_version(version: Option<&str>) -> Result<()> {
    match version {
        None | Some("1.0") => Ok(()),
        Some(other) => Err(unreadable(format!("version {other:?}, expected \"1.0\""))),
    }
}

fn refuse_randomness(settings: &ModelSettings) -> Result<()> {
    if let Some(dropout) = settings.dropout.filter(|&p| p > 0.0) {
        return Err(Error::NotDeterministic { what: format!("BPE dropout is {dropout}") });
    }
    if let Some(alpha) = settings.alpha.filter(|&a| a != 0.0) {
        return Err(Error::NotDeterministic { what: format!("Unigram sampling alpha is {alpha}") });
    }
    if let Some(size) = settings.nbest_size.filter(|&n| !(0..=1).contains(&n)) {
        return Err(Error::NotDeterministic {
            what: format!("Unigram sampling nbest_size is {size}"),
        });
    }
    Ok(())
}

/// `tokenizers` removes as many bytes as the prefix has from the second half of each merge, and takes
/// the rest for text unchecked: half a character aborts the process.
fn check_prefix(settings: &ModelSettings, model: &RawValue) -> Result<()> {
    let Some(prefix) = settings.continuing_subword_prefix.as_deref().filter(|p| !p.is_empty())
    else {
        return Ok(());
    };
    let Ok(ModelFile { merges, .. }) = serde_json::from_str(model.get()) else { return Ok(()) };
    let merges = merges.0;
    match merges.iter().position(|(_, second)| !second.is_char_boundary(prefix.len())) {
        None => Ok(()),
        Some(index) => Err(unreadable(format!(
            "model: merge {index} has {:?} for its second half, from which the \
             continuing_subword_prefix {prefix:?} cannot be taken",
            merges[index].1
        ))),
    }
}

/// Refuses overrides that name no token or contradict each other: with a typing error, the token that
/// was meant would keep its class without notice.
fn check_overrides(overrides: &Overrides, added: &[RawAddedToken]) -> Result<()> {
    let names = || overrides.control.iter().chain(&overrides.textual);
    if let Some(token) = names().find(|name| !added.iter().any(|t| t.content == **name)) {
        return Err(Error::Override {
            token: token.clone(),
            reason: "is not an added token of this tokenizer",
        });
    }
    match overrides.control.intersection(&overrides.textual).next() {
        None => Ok(()),
        Some(token) => Err(Error::Override {
            token: token.clone(),
            reason: "is in both control= and textual=",
        }),
    }
}

/// Ids as `tokenizers` gives them when it loads a file: the model's own id where the model has the
/// token, else the next free one; a later entry with the same id replaces an earlier one.
fn number_added_tokens(
    raw: Vec<RawAddedToken>,
    model: &Model,
    overrides: &Overrides,
) -> Vec<AddedToken> {
    let mut next = u32::try_from(model.vocab_size()).expect("ids are u32");
    let mut by_id: BTreeMap<u32, AddedToken> = BTreeMap::new();
    let mut ids: BTreeMap<String, u32> = BTreeMap::new();
    for token in raw.into_iter().filter(|token| !token.content.is_empty()) {
        let known = ids.get(&token.content).copied().or_else(|| model.token_to_id(&token.content));
        let id = known.unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        ids.insert(token.content.clone(), id);
        by_id.insert(id, token.classified(id, overrides));
    }
    by_id.into_values().collect()
}
