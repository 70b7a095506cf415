"""RequestInfo by kube-apiserver's rules: every expectation here is what k8s.io/apiserver 0.37 answers.

One row a request: method, target, verb, then `resource[/subresource][.group]`, namespace and name; a resource
of "-" is a non-resource request. `!` before the verb marks a long-running request.
"""

from __future__ import annotations

import pytest

from orca_sidecar.core.request_info import VERBS, RequestInfo, classify

NON_RESOURCE = "-"

CASES = """
# paths of resources
GET     /api/v1/namespaces                                  list    namespaces              -      -
GET     /api/v1/namespaces/other                            get     namespaces              other  other
GET     /api/v1/namespaces/other/pods                       list    pods                    other  -
GET     /api/v1/namespaces/other/pods/foo                   get     pods                    other  foo
HEAD    /api/v1/namespaces/other/pods/foo                   get     pods                    other  foo
GET     /api/v1/pods                                        list    pods                    -      -
HEAD    /api/v1/pods                                        list    pods                    -      -
GET     /api/v1/nodes/node-1                                get     nodes                   -      node-1
GET     /api/v1/pods/                                       list    pods                    -      -
GET     //api/v1/pods                                       list    pods                    -      -
PATCH   /api/v1/namespaces/new                              patch   namespaces              new    new
POST    /apis/apps/v1/namespaces/other/deployments          create  deployments.apps        other  -
GET     /apis/batch/v1/jobs                                 list    jobs.batch              -      -
GET     /apis/batch/v1/jobs/foo                             get     jobs.batch              -      foo
PUT     /apis/coordination.k8s.io/v1/namespaces/n/leases/l  update  leases.coordination.k8s.io  n  l
POST    /apis/authentication.k8s.io/v1/tokenreviews         create  tokenreviews.authentication.k8s.io - -

# the method decides the verb, exactly as written
PUT     /api/v1/namespaces/other/pods/foo                   update  pods                    other  foo
PATCH   /api/v1/namespaces/other/pods/foo                   patch   pods                    other  foo
DELETE  /api/v1/namespaces/other/pods/foo                   delete  pods                    other  foo
POST    /api/v1/namespaces/other/pods                       create  pods                    other  -
OPTIONS /api/v1/pods                                        other   pods                    -      -
get     /api/v1/pods                                        other   pods                    -      -
DELETE  /api/v1/nodes                                       deletecollection nodes          -      -
DELETE  /api/v1/namespaces                                  deletecollection namespaces     -      -
DELETE  /api/v1/namespaces/other/pods                       deletecollection pods           other  -
DELETE  /apis/apps/v1/namespaces/other/deployments          deletecollection deployments.apps other -
DELETE  /api/v1/nodes?fieldSelector=metadata.name=n         deletecollection nodes          -      -

# verbs in the path
GET     /api/v1/watch/pods                                  !watch  pods                    -      -
GET     /api/v1/watch/namespaces/other/pods                 !watch  pods                    other  -
GET     /api/v1/watch/namespaces/other/pods/foo             !watch  pods                    other  foo
GET     /apis/apps/v1/watch/deployments                     !watch  deployments.apps        -      -
POST    /api/v1/watch/pods                                  !watch  pods                    -      -
GET     /api/v1/watch/pods?watch=0                          !watch  pods                    -      -
GET     /api/v1/proxy/namespaces/other/pods/foo             !proxy  pods                    other  foo
GET     /api/v1/proxy/namespaces/other/pods/foo/sub/path    !proxy  pods                    other  foo
GET     /api/v1/proxy/nodes/node-1                          !proxy  nodes                   -      node-1
GET     /api/v1/watch                                       get     -resource               -      -
DELETE  /api/v1/proxy/                                      delete  -resource               -      -

# the watch parameter: the first value, anything but 0 and false in any case
GET     /api/v1/pods?watch=true                             !watch  pods                    -      -
GET     /api/v1/pods?watch                                  !watch  pods                    -      -
GET     /api/v1/pods?watch=                                 !watch  pods                    -      -
GET     /api/v1/pods?watch=no                               !watch  pods                    -      -
GET     /api/v1/pods?limit=5&watch=1                        !watch  pods                    -      -
GET     /api/v1/pods?watch=1&watch=0                        !watch  pods                    -      -
GET     /api/v1/pods?w%61tch=%31                            !watch  pods                    -      -
GET     /api/v1/pods?watch=+0                               !watch  pods                    -      -
HEAD    /api/v1/pods?watch=1                                !watch  pods                    -      -
GET     /api/v1/namespaces/other/pods?watch=1               !watch  pods                    other  -
GET     /api/v1/namespaces?watch=1                          !watch  namespaces              -      -
GET     /api/v1/pods?watch=false                            list    pods                    -      -
GET     /api/v1/pods?watch=FALSE                            list    pods                    -      -
GET     /api/v1/pods?watch=0                                list    pods                    -      -
GET     /api/v1/pods?watch=0&watch=1                        list    pods                    -      -
GET     /api/v1/pods?watch=%30                              list    pods                    -      -
GET     /api/v1/pods?watch=%zz                              list    pods                    -      -
GET     /api/v1/pods?watch;=1                               list    pods                    -      -
GET     /api/v1/pods?watch=1;x                              list    pods                    -      -
GET     /api/v1/pods?Watch=1                                list    pods                    -      -
GET     /api/v1/pods?xwatch=1&watches=1                     list    pods                    -      -
GET     /api/v1/pods??watch=1                               list    pods                    -      -
GET     /api/v1/pods?                                       list    pods                    -      -
GET     /api/v1/namespaces/other/pods/foo?watch=1           get     pods                    other  foo
GET     /api/v1/namespaces/other?watch=1                    get     namespaces              other  other
POST    /api/v1/namespaces/other/pods?watch=1               create  pods                    other  -
GET     /version?watch=1                                    get     -                       -      -

# a field selector that pins the name
GET     /apis/g/v/things?fieldSelector=metadata.name=n1              list   things.g  -  n1
GET     /apis/g/v/things?fieldSelector=metadata.name%3Dn1            list   things.g  -  n1
GET     /apis/g/v/things?fieldSelector=metadata.name==n1             list   things.g  -  n1
GET     /apis/g/v/things?watch=true&fieldSelector=metadata.name=n1   !watch things.g  -  n1
GET     /apis/g/v/things?fieldSelector=a=b,metadata.name=n1          list   things.g  -  n1
GET     /apis/g/v/things?fieldSelector=,,metadata.name=n1,           list   things.g  -  n1
GET     /apis/g/v/things?fieldSelector=metadata.name=b,metadata.name=a  list things.g -  a
GET     /apis/g/v/things?fieldSelector=metadata.name=a\\,b           list   things.g  -  a,b
GET     /apis/g/v/things?fieldSelector=a!b=c,metadata.name=n1        list   things.g  -  n1
GET     /apis/g/v/things?fieldSelector=foo=bar                       list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name!=n1             list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=n1,foo          list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=n1,foo&watch=1  !watch things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=a=b             list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=a\\             list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=a\\q            list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=..              list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=a/b             list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=metadata.name=a%2525          list   things.g  -  -
GET     /apis/g/v/things?fieldSelector=&fieldSelector=metadata.name=n1  list things.g -  -
GET     /apis/g/v/namespaces/n/things/x?fieldSelector=metadata.name=y   get  things.g n  x

# subresources, those of a namespace included
GET     /api/v1/namespaces/other/pods/foo/status            get     pods/status             other  foo
PUT     /api/v1/namespaces/other/finalize                   update  namespaces/finalize     other  other
PUT     /api/v1/namespaces/other/status                     update  namespaces/status       other  other
GET     /api/v1/namespaces/other/status/foo                 get     namespaces/status       other  other
PATCH   /apis/apps/v1/namespaces/n/deployments/d/scale      patch   deployments/scale.apps  n      d
GET     /api/v1/namespaces/n/pods/foo/log                   !get    pods/log                n      foo
GET     /api/v1/namespaces/n/pods/foo/exec?command=ls       !get    pods/exec               n      foo
POST    /api/v1/namespaces/n/pods/foo/exec?command=ls       !create pods/exec               n      foo
POST    /api/v1/namespaces/n/pods/foo/attach                !create pods/attach             n      foo
POST    /api/v1/namespaces/n/pods/foo/portforward           !create pods/portforward        n      foo
POST    /api/v1/namespaces/n/pods/foo/eviction              create  pods/eviction           n      foo
GET     /api/v1/namespaces/n/pods/foo/proxy/sub/path        !get    pods/proxy              n      foo
OPTIONS /api/v1/namespaces/n/services/s/proxy/              !other  services/proxy          n      s
DELETE  /api/v1/nodes/node-1/proxy/x                        !delete nodes/proxy             -      node-1
GET     /api/v1/namespaces/n/pods//log                      !list   pods/log                n      -

# escapes are undone before the path is split
GET     /api/v1/namespaces/n/pods%2Ffoo%2Flog               !get    pods/log                n      foo
GET     /api%2Fv1%2Fpods                                    list    pods                    -      -
GET     /api/v1/w%61tch/pods                                !watch  pods                    -      -
GET     /api/v1/nodes/a+b                                   get     nodes                   -      a+b
GET     /api/v1/nodes/%C3%A9                                get     nodes                   -      é
GET     /api/v1/nodes/%ff                                   get     nodes                   -      \ufffd
GET     /api/v1/../pods                                     get     ..                      -      pods

# targets with a scheme
GET     http://host:6443/api/v1/pods?watch=1                !watch  pods                    -      -
GET     https://host/healthz                                get     -                       -      -
GET     https://host?watch=1                                get     -                       -      -
GET     x:/api/v1/pods                                      list    pods                    -      -
GET     mailto:someone                                      get     -                       -      -
GET     api/v1/pods                                         get     -                       -      -
OPTIONS *                                                   options -                       -      -
CONNECT host:443                                            connect -                       -      -

# everything else
GET     /                                                   get     -                       -      -
GET     /api                                                get     -                       -      -
GET     /api/v1                                             get     -                       -      -
GET     /api/v1/                                            get     -                       -      -
GET     /apis                                               get     -                       -      -
GET     /apis/apps                                          get     -                       -      -
GET     /apis/apps/v1                                       get     -                       -      -
GET     /apis/apps/v1/                                      get     -                       -      -
GET     /not-api/v1/pods                                    get     -                       -      -
GET     /apiss/apps/v1/pods                                 get     -                       -      -
HEAD    /readyz                                             head    -                       -      -
POST    /version                                            post    -                       -      -
PUT     /version                                            put     -                       -      -
PATCH   /version                                            patch   -                       -      -
DELETE  /logs/x                                             delete  -                       -      -
TRACE   /                                                   trace   -                       -      -
BREW    /coffee                                             other   -                       -      -
WATCH   /coffee                                             !watch  -                       -      -
GET     /openapi/v3/apis/apps/v1                            get     -                       -      -
GET     /debug/pprof/profile                                !get    -                       -      -
GET     /debug/pprof                                        get     -                       -      -
GET     /metrics                                            get     -                       -      -
"""


def rows() -> list[tuple[str, ...]]:
    lines = [line for line in CASES.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split()) for line in lines]


def described(info: RequestInfo) -> tuple[str, str, str, str]:
    what = NON_RESOURCE
    if info.is_resource:
        what = info.resource or "-resource"
        what += f"/{info.subresource}" if info.subresource else ""
        what += f".{info.api_group}" if info.api_group else ""
    verb = "!" + info.verb if info.long_running else info.verb
    return verb, what, info.namespace or "-", info.name or "-"


@pytest.mark.parametrize(("method", "target", "verb", "what", "namespace", "name"), rows())
def test_request_info(method: str, target: str, verb: str, what: str, namespace: str, name: str) -> None:
    info = classify(method.encode(), target.encode())
    assert described(info) == (verb, what, namespace, name)
    assert VERBS[info.verb_index] == info.verb
