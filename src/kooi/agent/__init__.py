"""The agent's tool: `run_python` for any model interface, and a small agent loop to go with it."""

from __future__ import annotations

from kooi.agent.loop import Agent, Model, ModelError, Reply, Step, Task, ToolCall, Transcript
from kooi.agent.models import AnthropicModel, OpenAIModel
from kooi.agent.scripted import ScriptedModel
from kooi.agent.tool import Tool, ToolOutcome, run_python_tool

__all__ = [
    "Agent",
    "AnthropicModel",
    "Model",
    "ModelError",
    "OpenAIModel",
    "Reply",
    "ScriptedModel",
    "Step",
    "Task",
    "Tool",
    "ToolCall",
    "ToolOutcome",
    "Transcript",
    "run_python_tool",
]
