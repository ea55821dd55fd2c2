//! `abut.Trajectory`.

use abut_core::Trajectory;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::arrays::{Numbers, ids_in, ids_out};
use crate::columns::PyColumns;
use crate::convert::{Parts, mode_of, provenance_in};
use crate::detach::{copying, looking_up};
use crate::error;
use crate::requests::Requests;
use crate::seam::PySeam;
use crate::tokenizer::PyTokenizer;

#[pyclass(name = "Turn", module = "abut", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyTurn(abut_core::Turn);

#[pymethods]
impl PyTurn {
    #[getter]
    fn start(&self) -> usize {
        self.0.start
    }

    #[getter]
    fn end(&self) -> usize {
        self.0.end
    }

    fn __repr__(&self) -> String {
        format!("Turn(start={}, end={})", self.0.start, self.0.end)
    }
}

#[pyclass(name = "Trajectory", module = "abut")]
pub struct PyTrajectory {
    inner: Trajectory,
    requests: Requests,
    vocab_size: usize,
}

/// For a call that changes it; nobody else may be in one, also while the GIL is released.
fn changing<'py>(trajectory: &Bound<'py, PyTrajectory>) -> PyResult<PyRefMut<'py, PyTrajectory>> {
    trajectory.try_borrow_mut().map_err(|_| in_use())
}

fn reading<'py>(trajectory: &Bound<'py, PyTrajectory>) -> PyResult<PyRef<'py, PyTrajectory>> {
    trajectory.try_borrow().map_err(|_| in_use())
}

fn in_use() -> PyErr {
    error::trajectory(
        "the trajectory is in use by another thread\n\
         hint: one thread at a time: give each rollout its own, or hold a lock around the calls"
            .to_owned(),
    )
}

#[pymethods]
impl PyTrajectory {
    #[new]
    fn new(tokenizer: &Bound<'_, PyTokenizer>) -> Self {
        let core = tokenizer.get().0.clone();
        let vocab_size = core.vocab_size();
        Self { vocab_size, requests: Requests::default(), inner: Trajectory::new(core) }
    }

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
        slf.py()
            .detach(|| inner.append_text(text, mode, provenance))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

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
        slf.py()
            .detach(|| inner.append_parts(&parts, provenance))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

    fn request<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let mut this = changing(slf)?;
        let this = &mut *this;
        this.requests.view(slf.py(), this.inner.request())
    }

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

    #[getter]
    fn ids<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        Ok(ids_out(slf.py(), reading(slf)?.inner.ids()))
    }

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

    #[getter]
    fn logprobs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let this = reading(slf)?;
        let logprobs = this.inner.logprobs();
        let copy = copying(slf.py(), logprobs.len(), || logprobs.to_vec());
        Ok(PyArray1::from_vec(slf.py(), copy))
    }

    #[getter]
    fn provenance<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let this = reading(slf)?;
        let provenance = this.inner.provenance();
        let copy = copying(slf.py(), provenance.len(), || provenance.to_vec());
        Ok(PyArray1::from_vec(slf.py(), copy))
    }

    #[getter]
    fn turns(slf: &Bound<'_, Self>) -> PyResult<Vec<PyTurn>> {
        Ok(reading(slf)?.inner.turns().iter().copied().map(PyTurn).collect())
    }

    fn columns(slf: &Bound<'_, Self>) -> PyResult<PyColumns> {
        let this = reading(slf)?;
        let inner = &this.inner;
        let columns = copying(slf.py(), inner.ids().len(), || inner.columns());
        Ok(PyColumns::from_core(slf.py(), columns.map_err(|e| error::to_py(&e))?))
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
