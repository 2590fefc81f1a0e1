"""The demo's request with recall: an operator approves a guideline, and a task is asked again."""

from typing import Any

from console.client import ServiceClient
from console.demo_traffic import User

GUIDELINE = "Answer with the bare number."


def recall_once(client: ServiceClient, user: User) -> dict[str, Any]:
    """Ask the newest task of the largest skill again; return what memory put into the prompt.

    Returns:
        The skill's ``title``; whether its ``guideline`` was told; how many ``episodes`` were.
    """
    skill = max(client.get("skills")["data"], key=lambda row: row["num_episodes"])
    client.put("skills", str(skill["id"]), "guideline", body={"text": GUIDELINE})
    [newest] = client.get("episodes", skill=skill["id"], limit=1)["data"]
    episode_id = user.ask_recalling(newest["task_text"])
    calls = client.get("episodes", episode_id)["calls"] if episode_id else []
    told = next((call["recalled"] for call in calls if call["recalled"]), None)
    return {
        "title": skill["title"],
        "guideline": told is not None and told["guideline"],
        "episodes": 0 if told is None else len(told["episodes"]),
    }
