"""Results of Specfrontier: the Arrow format, metrics, the frontier and the report.

    cells, generations = analysis.load_cells(dir), analysis.load_generations(dir)
    analysis.joint_vs_one_pass(cells, generations).verdict.sentence

Works on a laptop: imports neither torch nor transformers nor ray.
"""

from analysis.cell_metrics import summarize_generations
from analysis.comparison import Comparison, joint_vs_one_pass
from analysis.errors import ResultsError, ResultsWarning
from analysis.estimate import Estimate
from analysis.frontier import Frontier, hypervolume, pareto_frontier
from analysis.operating_points import operating_points
from analysis.reader import load_cells, load_environment, load_generations
from analysis.results_dir import claim_results, finished_cells
from analysis.sample_building import split_conditions
from analysis.verdict import Verdict
from analysis.writer import write_cell

__all__ = [
    "Comparison",
    "Estimate",
    "Frontier",
    "ResultsError",
    "ResultsWarning",
    "Verdict",
    "claim_results",
    "finished_cells",
    "hypervolume",
    "joint_vs_one_pass",
    "load_cells",
    "load_environment",
    "load_generations",
    "operating_points",
    "pareto_frontier",
    "split_conditions",
    "summarize_generations",
    "write_cell",
]
