"""Roles that the identity suites lean on."""

from __future__ import annotations

from typing import Any


def _binding(name: str, rules: list[dict[str, Any]], *subjects: tuple[str, str]) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": kind, "name": subject} for kind, subject in subjects],
        },
    ]


OBJECTS = [
    # So that kube-apiserver tells an anonymous caller, too, who it is.
    *_binding(
        "e2e-who-am-i",
        [{"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]}],
        ("Group", "system:unauthenticated"),
        ("Group", "system:authenticated"),
    ),
    *_binding(
        "e2e-impersonate",
        [
            {
                "apiGroups": [""],
                "resources": ["users", "groups"],
                "verbs": ["impersonate"],
                "resourceNames": ["bob", "team-a", "team-b"],
            },
            {
                "apiGroups": ["authentication.k8s.io"],
                "resources": ["uids", "userextras/scopes"],
                "verbs": ["impersonate"],
            },
        ],
        ("User", "impersonator"),
    ),
    *_binding(
        "e2e-read-config-maps",
        [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}],
        ("Group", "developers"),
    ),
    # What kubeadm makes for `kubeadm join`.
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": "clusters: []"},
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "kubeadm:bootstrap-signer-clusterinfo", "namespace": "kube-public"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": ["cluster-info"],
                "verbs": ["get"],
            }
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "kubeadm:bootstrap-signer-clusterinfo", "namespace": "kube-public"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": "kubeadm:bootstrap-signer-clusterinfo",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:anonymous"}],
    },
    {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "robot", "namespace": "default"},
    },
]
