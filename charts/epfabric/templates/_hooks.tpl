{{- /*
What hooks share. A hook's account and rights are hooks themselves: they are there before its Job
and go when it has succeeded. A Job that failed stays, so that its log can be read.
*/ -}}

{{- /* Metadata: root, name, events, weight; namespaced unless `global`. */ -}}
{{- define "epfabric.hookMetadata" -}}
name: {{ .name }}
{{- if not .global }}
namespace: {{ .namespace | default .root.Release.Namespace }}
{{- end }}
labels: {{- include "epfabric.labels" .root | nindent 2 }}
annotations:
  helm.sh/hook: {{ .events }}
  helm.sh/hook-weight: {{ .weight | default -5 | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- /* Account and cluster-wide binding: root, name, events. */ -}}
{{- define "epfabric.hookAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata: {{- include "epfabric.hookMetadata" . | nindent 2 }}
automountServiceAccountToken: false
{{- include "epfabric.pullSecrets" .root }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{- include "epfabric.hookMetadata" (merge (dict "global" true) .) | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ .name }}}
subjects:
  - {kind: ServiceAccount, name: {{ .name }}, namespace: {{ .root.Release.Namespace }}}
{{- end }}

{{- /* A Role and its binding: root, name, events, namespace, rules. */ -}}
{{- define "epfabric.hookRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{- include "epfabric.hookMetadata" . | nindent 2 }}
rules: {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{- include "epfabric.hookMetadata" . | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .name }}}
subjects:
  - {kind: ServiceAccount, name: {{ .name }}, namespace: {{ .root.Release.Namespace }}}
{{- end }}

{{- /* The pod of a hook, on any Linux node that takes it: root, name, args. */ -}}
{{- define "epfabric.hookPod" -}}
serviceAccountName: {{ .account | default .name }}
automountServiceAccountToken: true
restartPolicy: Never
nodeSelector:
  kubernetes.io/os: linux
{{- with .root.Values.operator.nodeSelector }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.operator.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ .name }}
    image: {{ include "epfabric.image" (dict "root" .root "image" .root.Values.images.operator) }}
    imagePullPolicy: {{ .root.Values.images.operator.pullPolicy }}
    command: [epfabric-operator]
    args: {{ toJson .args }}
    env:
      - {name: EPFABRIC_NAMESPACE, value: {{ .root.Release.Namespace }}}
      - {name: EPFABRIC_NODES_NAMESPACE, value: {{ include "epfabric.nodesNamespace" .root }}}
    # `kubectl describe pod` shows the last lines.
    terminationMessagePolicy: FallbackToLogsOnError
    resources:
      requests: {cpu: 50m, memory: 96Mi, ephemeral-storage: 64Mi}
      limits: {memory: 256Mi, ephemeral-storage: 256Mi}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
{{- end }}

{{- /* A Job that is bounded whatever happens to its pod: root, name, events, weight, args, seconds. */ -}}
{{- define "epfabric.hookJob" -}}
apiVersion: batch/v1
kind: Job
metadata: {{- include "epfabric.hookMetadata" . | nindent 2 }}
spec:
  backoffLimit: {{ .retries | default 0 }}
  activeDeadlineSeconds: {{ .seconds }}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: epfabric-hook
        {{- include "epfabric.labels" .root | nindent 8 }}
    spec: {{- include "epfabric.hookPod" . | nindent 6 }}
{{- end }}
