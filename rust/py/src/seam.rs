//! `abut.Seam`.

use abut_core::Seam;
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::convert::ids_out;

#[pyclass(name = "Seam", module = "abut", frozen, eq)]
#[derive(PartialEq, Eq)]
pub struct PySeam(pub Seam);

#[pymethods]
impl PySeam {
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.as_str()
    }

    #[getter]
    fn exact(&self) -> bool {
        self.0.exact
    }

    #[getter]
    fn drop(&self) -> usize {
        self.0.drop
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.ids)
    }

    #[getter]
    fn canonical_ids<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<i64>>> {
        self.0.canonical_ids.as_deref().map(|ids| ids_out(py, ids))
    }

    fn __repr__(&self) -> String {
        let canonical = self
            .0
            .canonical_ids
            .as_ref()
            .map_or_else(String::new, |ids| format!(", canonical_ids={ids:?}"));
        format!(
            "Seam(kind={:?}, exact={}, drop={}, ids={:?}{canonical})",
            self.0.kind.as_str(),
            if self.0.exact { "True" } else { "False" },
            self.0.drop,
            self.0.ids,
        )
    }
}
