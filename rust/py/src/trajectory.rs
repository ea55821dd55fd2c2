//! `abut.Trajectory`.

use abut_core::Trajectory;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::columns::PyColumns;
use crate::convert::{Parts, ids_in, ids_out, logprobs_in, mode_of, provenance_in};
use crate::error;
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
    vocab_size: usize,
}

#[pymethods]
impl PyTrajectory {
    #[new]
    fn new(tokenizer: &Bound<'_, PyTokenizer>) -> Self {
        let core = tokenizer.get().0.clone();
        Self { vocab_size: core.vocab_size(), inner: Trajectory::new(core) }
    }

    #[pyo3(signature = (text, *, added = "text", provenance = "env"))]
    fn append_text(
        &mut self,
        py: Python<'_>,
        text: &Bound<'_, PyString>,
        added: &str,
        provenance: &str,
    ) -> PyResult<PySeam> {
        let (text, mode) = mode_of(text, added)?;
        let provenance = provenance_in(provenance)?;
        let inner = &mut self.inner;
        py.detach(|| inner.append_text(text, mode, provenance))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

    #[pyo3(signature = (parts, *, provenance = "env"))]
    fn append_parts(
        &mut self,
        py: Python<'_>,
        parts: &Bound<'_, PyAny>,
        provenance: &str,
    ) -> PyResult<PySeam> {
        let parts = Parts::new(parts)?;
        let parts = parts.borrow()?;
        let provenance = provenance_in(provenance)?;
        let inner = &mut self.inner;
        py.detach(|| inner.append_parts(&parts, provenance))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

    fn request<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, self.inner.request())
    }

    fn append_sampled(
        &mut self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        logprobs: &Bound<'_, PyAny>,
    ) -> PyResult<PySeam> {
        let ids = ids_in(ids, self.vocab_size)?;
        let logprobs = logprobs_in(logprobs)?;
        let inner = &mut self.inner;
        py.detach(|| inner.append_sampled(&ids, &logprobs))
            .map(PySeam)
            .map_err(|e| error::to_py(&e))
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, self.inner.ids())
    }

    #[getter]
    fn sampled_mask<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u8>> {
        let sampled = abut_core::Provenance::Sampled as u8;
        PyArray1::from_iter(py, self.inner.provenance().iter().map(|&p| u8::from(p == sampled)))
    }

    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f32>> {
        PyArray1::from_slice(py, self.inner.logprobs())
    }

    #[getter]
    fn provenance<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u8>> {
        PyArray1::from_slice(py, self.inner.provenance())
    }

    #[getter]
    fn turns(&self) -> Vec<PyTurn> {
        self.inner.turns().iter().copied().map(PyTurn).collect()
    }

    fn columns(&self, py: Python<'_>) -> PyResult<PyColumns> {
        let columns = self.inner.columns().map_err(|e| error::to_py(&e))?;
        Ok(PyColumns::from_core(py, columns))
    }

    fn __len__(&self) -> usize {
        self.inner.ids().len()
    }

    fn __repr__(&self) -> String {
        format!("Trajectory({} tokens, {} turns)", self.inner.ids().len(), self.inner.turns().len())
    }
}
