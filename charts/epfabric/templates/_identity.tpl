{{- /*
Variables by which both policies know a pod: what it asks for, who owns it, which group it is of.
The mutating one writes `group` and `owner` into the volume, the validating one compares them.

Group: the annotation; else the JobSet, the LeaderWorkerSet's group, the MPIJob; else the controller.
A LeaderWorkerSet labels its leader by a webhook, so the policy is evaluated again after that.
*/ -}}
{{- define "epfabric.identityVariables" -}}
- name: annotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
- name: labels
  expression: "has(object.metadata.labels) ? object.metadata.labels : {}"
- name: fabric
  expression: "string(variables.annotations[?'epfabric.io/fabric'].orValue(''))"
- name: controllers
  expression: >-
    has(object.metadata.ownerReferences)
    ? object.metadata.ownerReferences.filter(r, has(r.controller) && r.controller)
    : []
- name: owner
  expression: >-
    variables.controllers.size() == 0
    ? ''
    : string(variables.controllers[0].apiVersion) + ' ' + string(variables.controllers[0].kind)
    + ' ' + string(variables.controllers[0].name) + ' ' + string(variables.controllers[0].uid)
- name: lwsGroup
  expression: >-
    'leaderworkerset.sigs.k8s.io/name' in variables.labels
    && 'leaderworkerset.sigs.k8s.io/group-index' in variables.labels
    ? 'lws-' + string(variables.labels['leaderworkerset.sigs.k8s.io/name']) + '-'
    + string(variables.labels['leaderworkerset.sigs.k8s.io/group-index'])
    : ''
- name: group
  expression: >-
    'epfabric.io/group' in variables.annotations
    ? string(variables.annotations['epfabric.io/group'])
    : 'jobset.sigs.k8s.io/jobset-uid' in variables.labels
    ? 'jobset-' + string(variables.labels['jobset.sigs.k8s.io/jobset-uid'])
    : variables.lwsGroup.size() > 63 && 'leaderworkerset.sigs.k8s.io/group-key' in variables.labels
    ? 'lws-' + string(variables.labels['leaderworkerset.sigs.k8s.io/group-key'])
    : variables.lwsGroup != ''
    ? variables.lwsGroup
    : variables.labels[?'training.kubeflow.org/operator-name'].orValue('') == 'mpi-operator'
    && 'training.kubeflow.org/job-name' in variables.labels
    ? 'mpijob-' + string(variables.labels['training.kubeflow.org/job-name'])
    : variables.controllers.size() == 0
    ? ''
    : (string(variables.controllers[0].kind).size() > 26
       ? string(variables.controllers[0].kind).substring(0, 26)
       : string(variables.controllers[0].kind)).lowerAscii()
    + '-' + string(variables.controllers[0].uid)
{{- end }}

{{- define "epfabric.foreignNamespaces" -}}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: [kube-system, {{ include "epfabric.nodesNamespace" . }}, {{ .Release.Namespace }}]
{{- end }}

{{- /* True where something of the pod's own has the volume's name or lies at the mount path. */ -}}
{{- define "epfabric.inTheWay" -}}
(has(object.spec.volumes)
 && object.spec.volumes.exists(v, v.name == 'epfabric'
    && !(has(v.csi) && v.csi.driver == 'csi.epfabric.io')))
|| object.spec.containers.exists(c, has(c.volumeMounts)
   && c.volumeMounts.exists(m, m.mountPath == '/var/run/epfabric' && m.name != 'epfabric'))
|| (has(object.spec.initContainers)
 && object.spec.initContainers.exists(c, has(c.volumeMounts)
   && c.volumeMounts.exists(m, m.mountPath == '/var/run/epfabric' && m.name != 'epfabric')))
{{- end }}

{{- /* `selected`: the fabric in `params` selects the namespace. */ -}}
{{- define "epfabric.selectorVariables" -}}
- name: labels
  expression: "has(namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}"
- name: selector
  expression: params.spec.namespaceSelector
- name: selected
  expression: >-
    (!has(variables.selector.matchLabels)
     || variables.selector.matchLabels.all(k,
          variables.labels[?k] == optional.of(variables.selector.matchLabels[k])))
    && (!has(variables.selector.matchExpressions)
     || variables.selector.matchExpressions.all(e,
          e.operator == 'Exists' ? e.key in variables.labels
          : e.operator == 'DoesNotExist' ? !(e.key in variables.labels)
          : (e.operator == 'In') == (e.key in variables.labels && has(e.values)
             && variables.labels[e.key] in e.values)))
{{- end }}
