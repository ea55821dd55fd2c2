//! `abut.Trajectory`.

use abut_core::Trajectory;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::arrays::{Numbers, ids_in, ids_out};
use crate::columns::PyColumns;
use crate::convert::{Parts, mode_of, provenance_in};
use crate::detach::{copying, encoding, looking_up};
use crate::error;
use crate::pickle::{Reduced, Written, read, reduce, refused, written};
use crate::requests::Requests;
use crate::seam::PySeam;
use crate::tokenizer::PyTokenizer;

/// The position of one sample in its trajectory.
#[pyclass(name = "Turn", module = "abut.trajectory", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyTurn(abut_core::Turn);

#[pymethods]
impl PyTurn {
    /// The position of its first token, which is the length of the request that it answers.
    #[getter]
    fn start(&self) -> usize {
        self.0.start
    }

    /// The position after its last token; equal to `start` if nothing was sampled.
    #[getter]
    fn end(&self) -> usize {
        self.0.end
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py, Written<'py>>> {
        reduce(slf, written(slf.py(), &slf.get().0)?)
    }

    #[staticmethod]
    fn _unpickled(state: &[u8]) -> PyResult<Self> {
        read(state).map(Self)
    }

    fn __repr__(&self) -> String {
        format!("Turn(start={}, end={})", self.0.start, self.0.end)
    }
}

/// Tokens in the order in which the engine saw and sampled them.
///
/// A token has a finite logprob exactly if it was sampled. Tokens that `request` returned
/// never change. Calls release the GIL, so other threads run meanwhile; a thread that calls a
/// trajectory which is in use gets a `TrajectoryError`. `Trajectory(tokenizer)` is empty.
#[pyclass(name = "Trajectory", module = "abut")]
pub struct PyTrajectory {
    inner: Trajectory,
    requests: Requests,
    vocab_size: usize,
}

/// Borrows the trajectory for a call that changes it. No other call may be under way, not even while the
/// GIL is released.
fn changing<'py>(trajectory: &Bound<'py, PyTrajectory>) -> PyResult<PyRefMut<'py, PyTrajectory>> {
    trajectory.try_borrow_mut().map_err(|_| in_use())
}

fn reading<'py>(trajectory: &Bound<'py, PyTrajectory>) -> PyResult<PyRef<'py, PyTrajectory>> {
    trajectory.try_borrow().map_err(|_| in_use())
}

fn in_use() -> PyErr {
    error::trajectory(
        "the trajectory is in use by another thread\n\
         hint: give each rollout its own trajectory, or hold a lock around the calls"
            .to_owned(),
    )
}

#[pymethods]
impl PyTrajectory {
    #[new]
    fn new(tokenizer: &Bound<'_, PyTokenizer>) -> Self {
        let core = tokenizer.get().core.clone();
        let vocab_size = core.vocab_size();
        Self { vocab_size, requests: Requests::default(), inner: Trajectory::new(core) }
    }

    /// Append context: content, or scaffold if `added="parse"`.
    ///
    /// Args:
    ///     text: joined to the text before it, back to the last token that was frozen or sampled.
    ///         The tokens do not depend on how the text was split into appends.
    ///     added: "parse": control tokens that are spelled become control tokens; "text": they
    ///         stay text; "raise": they are an error.
    ///     provenance: the author of the text; "close": abut, which ends a turn for the policy.
    ///
    /// Returns:
    ///     The seam between the tokens before it and the appended ones.
    ///
    /// Raises:
    ///     ControlTokenError: `added="raise"` and the text spells one; nothing is written.
    ///     TokenizerError: as `Tokenizer.encode`; nothing is written.
    #[pyo3(signature = (text, *, added = "text", provenance = "env"))]
    fn append_text(
        slf: &Bound<'_, Self>,
        text: &Bound<'_, PyString>,
        added: &str,
        provenance: &str,
    ) -> PyResult<PySeam> {
        let (text, mode) = mode_of(text, added)?;
        let provenance = provenance_in(provenance)?;
        let mut this = changing(slf)?;
        let inner = &mut this.inner;
        let bytes = inner.open_bytes() + text.len();
        let tokenizer = inner.shared_tokenizer();
        encoding(slf.py(), &tokenizer, bytes, || inner.append_text(text, mode, provenance))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

    /// Append context as typed parts, of which only scaffold may become control tokens.
    ///
    /// Args:
    ///     parts: scaffold and content, in order; they join as in `append_text`.
    ///     provenance: the author of the content.
    ///
    /// Returns:
    ///     The seam between the tokens before it and the appended ones.
    ///
    /// Raises:
    ///     TokenizerError: as `Tokenizer.encode_parts`; nothing is written.
    #[pyo3(signature = (parts, *, provenance = "env"))]
    fn append_parts(
        slf: &Bound<'_, Self>,
        parts: &Bound<'_, PyAny>,
        provenance: &str,
    ) -> PyResult<PySeam> {
        let parts = Parts::new(parts)?;
        let parts = parts.borrow()?;
        let provenance = provenance_in(provenance)?;
        let mut this = changing(slf)?;
        let inner = &mut this.inner;
        let bytes = inner.open_bytes() + parts.iter().map(|part| part.text.len()).sum::<usize>();
        let tokenizer = inner.shared_tokenizer();
        encoding(slf.py(), &tokenizer, bytes, || inner.append_parts(&parts, provenance))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

    /// Return all ids so far, `(T,)` int64, to send to the engine, and freeze them.
    ///
    /// The array is a read-only view that never changes: all requests of a trajectory share one
    /// buffer, and a turn writes only the ids that it adds. `torch.tensor(ids)` copies it.
    /// `torch.from_numpy` and `torch.as_tensor` share the buffer (torch warns about this), so do
    /// not write to their result: it would change all requests of the trajectory.
    fn request<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let mut this = changing(slf)?;
        let this = &mut *this;
        this.requests.view(slf.py(), this.inner.request())
    }

    /// Append the tokens that the engine sampled, unchanged.
    ///
    /// Args:
    ///     ids: `(T,)`.
    ///     logprobs: `(T,)`, nats, finite, aligned with `ids`.
    ///
    /// Returns:
    ///     The seam between the request and the sample.
    ///
    /// Raises:
    ///     TrajectoryError: `request` was not called directly before, or the logprobs are not one
    ///         finite number per id; nothing is written.
    ///     TokenizerError: an id outside the vocabulary.
    fn append_sampled(
        slf: &Bound<'_, Self>,
        ids: &Bound<'_, PyAny>,
        logprobs: &Bound<'_, PyAny>,
    ) -> PyResult<PySeam> {
        let vocab_size = reading(slf)?.vocab_size;
        let ids = ids_in(ids, vocab_size)?;
        let logprobs = Numbers::of("logprobs", logprobs)?;
        let logprobs = logprobs.as_slice()?;
        let mut this = changing(slf)?;
        let inner = &mut this.inner;
        let seam = looking_up(slf.py(), ids.len(), || inner.append_sampled(&ids, logprobs));
        seam.map(PySeam).map_err(|e| error::to_py(&e))
    }

    /// Return a new trajectory, equal to this one when it had `at` tokens.
    ///
    /// The two are independent from then on. The fork has the turns that start before `at`, and
    /// costs a copy of the tokens before it. What the fork may do next depends on `at`; the first
    /// of these cases that fits counts:
    ///
    /// - 0: it is empty.
    /// - The start of a turn: the fork is as after `request`, so another sample of that request
    ///   may follow at once. This also holds if another turn ends there or if nothing was
    ///   sampled, because after a request everything is possible that is possible after a sample.
    /// - The length: the fork is as this trajectory is now. An unanswered request may be answered
    ///   in both, and open text stays open: an append may change its last tokens.
    /// - The end of a turn: the fork is as after `append_sampled`.
    ///
    /// Args:
    ///     at: the position, in tokens.
    ///
    /// Raises:
    ///     TrajectoryError: any other position; the message names the nearest possible ones.
    fn fork(slf: &Bound<'_, Self>, at: i64) -> PyResult<Self> {
        let this = reading(slf)?;
        let inner = &this.inner;
        let fork = match usize::try_from(at) {
            Ok(at) => copying(slf.py(), at, || inner.fork(at)),
            Err(_) => Err(inner.no_fork_point(at)),
        };
        let inner = fork.map_err(|e| error::to_py(&e))?;
        // Requests of its own: it writes other ids behind those that both have.
        Ok(Self { inner, requests: Requests::default(), vocab_size: this.vocab_size })
    }

    /// `(T,)` int64: a copy of all ids.
    #[getter]
    fn ids<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        Ok(ids_out(slf.py(), reading(slf)?.inner.ids()))
    }

    /// `(T,)` uint8: 1 where the policy sampled the token.
    #[getter]
    fn sampled_mask<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let sampled = abut_core::Provenance::Sampled as u8;
        let this = reading(slf)?;
        let provenance = this.inner.provenance();
        let mask = copying(slf.py(), provenance.len(), || {
            provenance.iter().map(|&p| u8::from(p == sampled)).collect()
        });
        Ok(PyArray1::from_vec(slf.py(), mask))
    }

    /// `(T,)` float32, nats; NaN where the token was not sampled.
    #[getter]
    fn logprobs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let this = reading(slf)?;
        let logprobs = this.inner.logprobs();
        let copy = copying(slf.py(), logprobs.len(), || logprobs.to_vec());
        Ok(PyArray1::from_vec(slf.py(), copy))
    }

    /// `(T,)` uint8: each token's author, as an index of `abut.trajectory.PROVENANCE`.
    #[getter]
    fn provenance<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let this = reading(slf)?;
        let provenance = this.inner.provenance();
        let copy = copying(slf.py(), provenance.len(), || provenance.to_vec());
        Ok(PyArray1::from_vec(slf.py(), copy))
    }

    /// The position of each sample, in order.
    #[getter]
    fn turns(slf: &Bound<'_, Self>) -> PyResult<Vec<PyTurn>> {
        Ok(reading(slf)?.inner.turns().iter().copied().map(PyTurn).collect())
    }

    /// Return the row for a trainer, which ends with the last sampled token.
    ///
    /// Raises:
    ///     TrajectoryError: the trajectory has no sampled token.
    fn columns(slf: &Bound<'_, Self>) -> PyResult<PyColumns> {
        let this = reading(slf)?;
        let inner = &this.inner;
        let columns = copying(slf.py(), inner.ids().len(), || inner.columns());
        Ok(PyColumns::from_core(slf.py(), columns.map_err(|e| error::to_py(&e))?))
    }

    #[expect(clippy::unused_self, reason = "Python gives it")]
    fn __reduce__(&self) -> PyResult<()> {
        Err(refused(
            "a Trajectory cannot be pickled: it still grows, and would take its tokenizer along",
            "send trajectory.columns(), or its texts and the samples with their \
             logprobs; within a process, trajectory.fork(len(trajectory)) copies it",
        ))
    }

    fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
        Ok(reading(slf)?.inner.ids().len())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let this = reading(slf)?;
        let (tokens, turns) = (this.inner.ids().len(), this.inner.turns().len());
        Ok(format!("Trajectory({tokens} tokens, {turns} turns)"))
    }
}
