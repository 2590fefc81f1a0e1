"""Checks of what runs: the service's port, and the service itself."""

from urllib.parse import urlsplit

from agent.http_server import listen
from console.client import ServiceClient
from console.errors import NoServiceError, ServiceError
from doctor.finding import Finding
from doctor.patient import Patient, noted_url
from memory.errors import ConfigError


def check_port(patient: Patient) -> Finding:
    """Is the service's port free, or held by our own service?"""
    if patient.settings is None:
        return Finding.ok("port", "not looked at: the settings cannot be read")
    host, port = patient.settings.server.host, patient.settings.server.port
    if patient.service_runs and (url := noted_url(patient.home)) is not None:
        return Finding.ok("port", f"{urlsplit(url).port} is held by the running service")
    try:
        listen(host, port).close()
    except ConfigError as error:
        mend = "end the program that holds it, or set server.port (0 takes a free one)"
        return Finding.fail("port", error.message, mend=mend)
    return Finding.ok("port", f"{host}:{port} is free")


def check_service(_: Patient) -> Finding:
    """Does the service answer, and is it ready?"""
    try:
        with ServiceClient.from_environment() as client:
            status = client.get("status")
    except NoServiceError as error:
        return Finding.warn("service", str(error), mend="denizen serve")
    except ServiceError as error:
        mend = "set DENIZEN_API_KEY" if error.status in (401, 403) else "check DENIZEN_URL"
        return Finding.fail("service", error.message, mend=mend)
    if not status["ready"]:
        mend = "wait for it, or read the logs in the home's logs/"
        return Finding.warn("service", f"not ready: {'; '.join(status['reasons'])}", mend=mend)
    return Finding.ok("service", f"{status['url']} is ready; {status['live']} is live")
