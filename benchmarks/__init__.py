"""What Milecastle costs, measured beside LangGraph.

Run from the root of the repository: `python -m benchmarks steps|import|memory [--json] [--quick]`.
"""
