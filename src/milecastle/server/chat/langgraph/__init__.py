"""The part of the LangGraph server's HTTP interface its SDK and chat front ends need.

Everything is below ``/langgraph``: ``get_client(url="http://localhost:8321/langgraph")``. A graph
is an assistant of the same name.
"""
