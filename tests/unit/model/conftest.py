"""Manifests as tests need them."""

import pytest


@pytest.fixture
def pod():
    """Build the manifest of a pod with one container; keywords are fields of the spec."""

    def build(requests=None, limits=None, *, metadata=None, **spec):
        resources = {"requests": requests or {}, "limits": limits or {}}
        container = {"name": "c", "image": "busybox", "resources": resources}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", **(metadata or {})},
            "spec": {"containers": [container], **spec},
        }

    return build


@pytest.fixture
def template(pod):
    """Build a pod's manifest and read its template."""
    from hoss.manifests.pod import read_namespace, read_pod_template  # noqa: PLC0415 - for this fixture alone

    def build(*args, **fields):
        manifest = pod(*args, **fields)
        namespace = read_namespace(manifest["metadata"], "metadata")
        return read_pod_template(manifest["metadata"], manifest["spec"], "", namespace=namespace)

    return build
