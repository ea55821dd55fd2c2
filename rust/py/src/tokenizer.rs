//! `abut.Tokenizer`.

use std::collections::HashSet;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;

use abut_core::{Edge, Overrides, Tokenizer};
use numpy::PyArray1;
use pyo3::exceptions::{PyOSError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::arrays::{ids_in, widened};
use crate::batch;
use crate::convert::{Parts, mode_in, mode_of, overrides_in, text_in, texts_in};
use crate::detach::{encoding, looking_up};
use crate::error;
use crate::loaded::{kept, known};
use crate::pickle::{Reduced, reduce};
use crate::seam::PySeam;

/// A tokenizer from a `tokenizer.json`; the file's truncation and padding are ignored.
#[pyclass(name = "Tokenizer", module = "abut", frozen, weakref)]
pub struct PyTokenizer {
    pub core: Arc<Tokenizer>,
    /// The UTF-8 of its file, and the overrides, sorted. A pickle holds all of it, because the file may
    /// not exist where the pickle is read.
    pub source: Py<PyTuple>,
}

impl PyTokenizer {
    /// The tokenizer of this text and these overrides. `located` makes an error of a message. Warns if
    /// text will be encoded more slowly than its shape promises.
    fn of<'py>(
        json: &Bound<'py, PyBytes>,
        overrides: &Overrides,
        located: impl Fn(String) -> PyErr,
    ) -> PyResult<Bound<'py, Self>> {
        let py = json.py();
        let sorted = |tokens: &HashSet<String>| {
            let mut tokens: Vec<_> = tokens.iter().collect();
            tokens.sort_unstable();
            PyTuple::new(py, tokens)
        };
        let source = (json, sorted(&overrides.control)?, sorted(&overrides.textual)?);
        let source = source.into_pyobject(py)?;
        let tokenizer = if let Some(known) = known(&source)? {
            known
        } else {
            let text = std::str::from_utf8(json.as_bytes()).map_err(|_| {
                located(
                    "not a tokenizer.json: it is not UTF-8 text\n\
                     hint: load SentencePiece's tokenizer.model with from_pretrained(folder)"
                        .to_owned(),
                )
            })?;
            let core = py.detach(|| Tokenizer::from_json(text, overrides));
            let core = Arc::new(core.map_err(|e| located(e.to_string()))?);
            kept(Bound::new(py, Self { core, source: source.unbind() })?)?
        };
        if let Some(reason) = &tokenizer.get().core.profile().demoted_because {
            let message = format!(
                "abut cannot use its fast encoder for this tokenizer: {reason}. The tokens are exact, but \
                encoding is slower\nhint: please report the tokenizer, so that abut can support it"
            );
            let message = CString::new(message.replace('\0', "\u{fffd}"))?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &message, 1)?;
        }
        Ok(tokenizer)
    }
}

#[pymethods]
impl PyTokenizer {
    /// Read the text of a `tokenizer.json`.
    ///
    /// Args:
    ///     json: the text.
    ///     control: added tokens to treat as control tokens.
    ///     textual: added tokens to treat as ordinary text.
    ///
    /// Raises:
    ///     TokenizerError: the text is not a `tokenizer.json`, or the tokenizer draws its tokens
    ///         at random.
    #[staticmethod]
    #[pyo3(signature = (json, *, control = None, textual = None))]
    fn from_str<'py>(
        py: Python<'py>,
        json: &Bound<'py, PyString>,
        control: Option<&Bound<'py, PyAny>>,
        textual: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let json = PyBytes::new(py, text_in(json)?.as_bytes());
        Self::of(&json, &overrides_in(control, textual)?, error::tokenizer)
    }

    /// Read a `tokenizer.json`.
    ///
    /// Args:
    ///     path: the file.
    ///     control: as `from_str`.
    ///     textual: as `from_str`.
    ///
    /// Raises:
    ///     OSError: the file cannot be read.
    ///     TokenizerError: as `from_str`, with the path.
    #[staticmethod]
    #[pyo3(signature = (path, *, control = None, textual = None))]
    fn from_file<'py>(
        py: Python<'py>,
        path: PathBuf,
        control: Option<&Bound<'py, PyAny>>,
        textual: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let read = py.detach(|| std::fs::read(&path)).map_err(|e| {
            // With the path, as Python's own open() has it; OSError picks its subclass.
            let reason = e.to_string();
            // The code is passed twice: on Windows Python reads the last argument, with the system's own
            // numbers, and on other systems it ignores that one.
            let code = e.raw_os_error();
            PyOSError::new_err((code, reason, path.display().to_string(), code))
        })?;
        let json = PyBytes::new(py, &read);
        drop(read);
        let located = |message: String| error::tokenizer(format!("{}: {message}", path.display()));
        Self::of(&json, &overrides_in(control, textual)?, located)
    }

    /// Convert a transformers tokenizer, or load one by name or folder with transformers.
    ///
    /// Args:
    ///     source: the tokenizer, its name or its folder.
    ///     control: as `from_str`; added tokens that the chat template writes are included.
    ///     textual: as `from_str`; also for tokens that the chat template writes.
    ///
    /// Raises:
    ///     MissingExtraError: `source` is a name or folder, and transformers is not installed.
    ///     TokenizerError: the tokenizer is not a fast one: it has no `tokenizers` backend.
    #[staticmethod]
    #[pyo3(signature = (source, *, control = None, textual = None))]
    fn from_pretrained<'py>(
        source: &Bound<'py, PyAny>,
        control: Option<&Bound<'py, PyAny>>,
        textual: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let py = source.py();
        let empty = PyTuple::empty(py).into_any();
        let (control, textual) = (control.unwrap_or(&empty), textual.unwrap_or(&empty));
        let (json, control): (Bound<'_, PyString>, Bound<'_, PyAny>) = py
            .import("abut.pretrained")?
            .call_method1("tokenizer_source", (source, control, textual))?
            .extract()?;
        Self::from_str(py, &json, Some(&control), Some(textual))
    }

    /// Return the `(T,)` int64 tokens of `text`. Never adds BOS or EOS.
    ///
    /// Args:
    ///     text: the first text of a conversation.
    ///     added: "parse": control tokens that are spelled become control tokens; "text": they
    ///         stay text; "raise": they are an error.
    ///
    /// Raises:
    ///     ControlTokenError: `added="raise"` and the text spells one.
    ///     TokenizerError: the tokenizer cannot encode the text, or the text is not valid UTF-8.
    #[pyo3(signature = (text, *, added = "parse"))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyString>,
        added: &str,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (text, mode) = mode_of(text, added)?;
        let ids =
            encoding(py, &self.core, text.len(), || Ok(widened(&self.core.encode(text, mode)?)));
        ids.map(|ids| PyArray1::from_vec(py, ids)).map_err(|e| error::to_py(&e))
    }

    /// Encode several texts on all CPU cores; return the tokens of each, in order.
    ///
    /// Ctrl-C stops it between two texts.
    ///
    /// Args:
    ///     texts: each is the first text of a conversation.
    ///     added: as `encode`.
    ///
    /// Raises:
    ///     ControlTokenError: as `encode`, for the first text that has an error; names its index.
    ///     TokenizerError: the same.
    #[pyo3(signature = (texts, *, added = "parse"))]
    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        added: &str,
    ) -> PyResult<Vec<Bound<'py, PyArray1<i64>>>> {
        mode_in(added)?; // so that a wrong argument is not reported as the fault of a text
        let strings = texts_in(texts)?;
        let texts = strings
            .iter()
            .enumerate()
            .map(|(index, text)| mode_of(text, added).map_err(|e| error::in_text(py, index, &e)))
            .collect::<PyResult<Vec<_>>>()?;
        let bytes = texts.iter().map(|(text, _)| text.len()).sum();
        let answers = batch::answers(py, &self.core, bytes, texts.len(), |index| {
            let (text, mode) = texts[index];
            Ok(widened(&self.core.encode(text, mode)?))
        })?;
        let ids = answers.map_err(|(index, e)| error::in_text(py, index, &error::to_py(&e)))?;
        Ok(ids.into_iter().map(|ids| PyArray1::from_vec(py, ids)).collect())
    }

    /// Return the `(T,)` int64 tokens of all parts; only scaffold may become control tokens.
    ///
    /// Args:
    ///     parts: scaffold and content, in order.
    ///     at_start: True if the parts begin the conversation.
    ///
    /// Raises:
    ///     TokenizerError: content spells a control token and cannot be written with other
    ///         tokens, or the text is not valid UTF-8.
    #[pyo3(signature = (parts, *, at_start = true))]
    fn encode_parts<'py>(
        &self,
        py: Python<'py>,
        parts: &Bound<'py, PyAny>,
        at_start: bool,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let parts = Parts::new(parts)?;
        let parts = parts.borrow()?;
        let edge = if at_start { Edge::Start } else { Edge::Segment };
        let bytes = parts.iter().map(|part| part.text.len()).sum();
        let ids =
            encoding(py, &self.core, bytes, || Ok(widened(&self.core.encode_parts(&parts, edge)?)));
        ids.map(|ids| PyArray1::from_vec(py, ids)).map_err(|e| error::to_py(&e))
    }

    /// Return the bytes of the ids, by table.
    ///
    /// Args:
    ///     ids: `(T,)`.
    ///
    /// Raises:
    ///     TokenizerError: an id outside the vocabulary.
    fn decode_bytes<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ids = ids_in(ids, self.core.vocab_size())?;
        let bytes = looking_up(py, ids.len(), || self.core.decode_bytes(&ids));
        let bytes = bytes.map_err(|e| error::to_py(&e))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Return the text of the ids; bytes that do not form a character become U+FFFD.
    ///
    /// Args:
    ///     ids: `(T,)`.
    ///
    /// Raises:
    ///     TokenizerError: an id outside the vocabulary.
    fn decode(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<String> {
        let ids = ids_in(ids, self.core.vocab_size())?;
        let text = looking_up(py, ids.len(), || {
            let whole = String::from_utf8(self.core.decode_bytes(&ids)?);
            Ok(whole.unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
        });
        text.map_err(|e| error::to_py(&e))
    }

    /// Return the control tokens that `text` spells, as `(index of the first character, token)`.
    ///
    /// `encode(text, added="parse")` would write these tokens; `added="text"` does not.
    fn control_spellings(
        &self,
        py: Python<'_>,
        text: &Bound<'_, PyString>,
    ) -> PyResult<Vec<(usize, String)>> {
        let text = text_in(text)?;
        let spelled = encoding(py, &self.core, text.len(), || self.core.control_spellings(text));
        let spelled = spelled.map_err(|e| error::to_py(&e))?;
        Ok(spelled.into_iter().map(|spelled| (spelled.position, spelled.token)).collect())
    }

    /// Return the verdict on the seam between two texts, of which `a` begins a conversation.
    ///
    /// The time depends on `b` and on the run of characters at the seam, not on the length of
    /// `a`, unless `profile()["opaque_because"]` is set.
    ///
    /// Raises:
    ///     ControlTokenError: `added="raise"` and the text spells one.
    ///     TokenizerError: as `encode`.
    #[pyo3(signature = (a, b, *, added = "parse"))]
    fn seam(
        &self,
        py: Python<'_>,
        a: &Bound<'_, PyString>,
        b: &Bound<'_, PyString>,
        added: &str,
    ) -> PyResult<PySeam> {
        let ((a, mode), (b, _)) = (mode_of(a, added)?, mode_of(b, added)?);
        encoding(py, &self.core, a.len() + b.len(), || self.core.seam(a, b, mode))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

    /// Return True if `encode(a + b)` is literally `encode(a)` followed by `encode(b)`.
    ///
    /// Raises:
    ///     ControlTokenError: `added="raise"` and the text spells one.
    ///     TokenizerError: as `encode`.
    #[pyo3(signature = (a, b, *, added = "parse"))]
    fn is_additive(
        &self,
        py: Python<'_>,
        a: &Bound<'_, PyString>,
        b: &Bound<'_, PyString>,
        added: &str,
    ) -> PyResult<bool> {
        let ((a, mode), (b, _)) = (mode_of(a, added)?, mode_of(b, added)?);
        encoding(py, &self.core, a.len() + b.len(), || self.core.is_additive(a, b, mode))
            .map_err(|e| error::to_py(&e))
    }

    /// Return the id of an added token or vocabulary entry; None if it does not exist.
    fn token_to_id(&self, token: &Bound<'_, PyString>) -> PyResult<Option<u32>> {
        Ok(self.core.token_to_id(text_in(token)?))
    }

    /// The number of ids, added tokens included.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.core.vocab_size()
    }

    /// Return facts about the tokenizer, without encoding anything.
    ///
    /// Keys: model, normalizer, pre_tokenizer, vocab_size; encoder ("fast" is abut's own, "hf" is
    /// the `tokenizers` package); demoted_because (why "hf" is used although "fast" supports this
    /// kind of tokenizer: the two gave different tokens for a probe text); opaque_because (why an
    /// append encodes the open text again; None if a window of it is enough); and the lists
    /// hard_tokens, control_tokens, textual_tokens, mintable_tokens (control tokens that the
    /// model's own vocabulary could spell; abut prevents it) and swallowed_tokens (added tokens
    /// that begin with whitespace, which an rstrip token directly before them removes;
    /// `tokenizers` writes them anyway).
    fn profile<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let profile = self.core.profile();
        let dict = PyDict::new(py);
        dict.set_item("model", &profile.model)?;
        dict.set_item("normalizer", &profile.normalizer)?;
        dict.set_item("pre_tokenizer", &profile.pre_tokenizer)?;
        dict.set_item("vocab_size", profile.vocab_size)?;
        dict.set_item("opaque_because", &profile.opaque_because)?;
        dict.set_item("encoder", profile.encoder)?;
        dict.set_item("demoted_because", &profile.demoted_because)?;
        dict.set_item("hard_tokens", &profile.hard)?;
        dict.set_item("control_tokens", &profile.control)?;
        dict.set_item("textual_tokens", &profile.textual)?;
        dict.set_item("mintable_tokens", &profile.mintable)?;
        dict.set_item("swallowed_tokens", &profile.swallowed)?;
        Ok(dict)
    }

    /// A tokenizer never changes, so a copy is the tokenizer itself.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (memo, /))]
    #[expect(unused_variables, reason = "Python names it")]
    fn __deepcopy__(slf: Py<Self>, memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py, Bound<'py, PyTuple>>> {
        reduce(slf, slf.get().source.bind(slf.py()).clone())
    }

    /// One for all pickles of it that a process reads: it is large, and takes a while to make.
    #[staticmethod]
    #[pyo3(signature = (*source))]
    fn _unpickled<'py>(source: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, Self>> {
        let (json, control, textual): (Bound<'_, PyBytes>, Bound<'_, PyAny>, Bound<'_, PyAny>) =
            source.extract()?;
        Self::of(&json, &overrides_in(Some(&control), Some(&textual))?, error::tokenizer)
    }

    fn __repr__(&self) -> String {
        let profile = self.core.profile();
        format!("Tokenizer(model={:?}, vocab_size={})", profile.model, profile.vocab_size)
    }
}
