{{/* Names and labels. */}}

{{/* At most 32 characters: KubeRay allows a RayJob 47, and "-controller-" with a generation of three digits takes 15. */}}
{{- define "nereus.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 32 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 32 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 32 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "nereus.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of pods that KubeRay makes: it has its own app.kubernetes.io/name, by which the head's Service finds them. */}}
{{- define "nereus.podLabels" -}}
app.kubernetes.io/part-of: nereus
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nereus.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "nereus.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The RayCluster that the controller lives on: the chart's own, or the one that is named. */}}
{{- define "nereus.clusterName" -}}
{{- if .Values.rayCluster.name -}}
{{- .Values.rayCluster.name -}}
{{- else if .Values.rayCluster.create -}}
{{- include "nereus.fullname" . -}}
{{- else -}}
{{- fail "rayCluster.create is false and rayCluster.name is empty: name the RayCluster of this namespace that the controller is to live on" -}}
{{- end -}}
{{- end -}}

{{/* The Service that KubeRay makes of the head, as pods of its namespace call it. */}}
{{- define "nereus.headHost" -}}
{{- include "nereus.clusterName" . }}-head-svc
{{- end -}}

{{/* KubeRay puts these labels on the head's pod. */}}
{{- define "nereus.headLabels" -}}
ray.io/cluster: {{ include "nereus.clusterName" . }}
ray.io/node-type: head
{{- end -}}

{{- define "nereus.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "nereus.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "nereus.claimName" -}}
{{- default (include "nereus.fullname" .) .Values.persistence.existingClaim -}}
{{- end -}}

{{- define "nereus.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/*
Where the head's pod has the tokens of the API. In the chart's own head they are mounted over a folder, which must hold nothing
else, so the place is fixed. Into another's pod the chart mounts nothing, so its owner's path must be told.
*/}}
{{- define "nereus.tokenFile" -}}
{{- if .Values.rayCluster.create -}}
{{- $place := printf "/etc/nereus/%s" .Values.api.tokensKey -}}
{{- if and .Values.api.tokenFile (ne .Values.api.tokenFile $place) -}}
{{- fail (printf "api.tokenFile is %s, but rayCluster.create is true: the chart's own head has the tokens at %s; leave api.tokenFile empty" .Values.api.tokenFile $place) -}}
{{- end -}}
{{- $place -}}
{{- else if .Values.api.tokenFile -}}
{{- .Values.api.tokenFile -}}
{{- else -}}
{{- fail "rayCluster.create is false and api.existingSecret is set, but api.tokenFile is empty: give the path at which the head's pod of that RayCluster has the token file" -}}
{{- end -}}
{{- end -}}

{{/* "true" if others than the head's own pod may reach the API: it has tokens, so it may leave loopback. */}}
{{- define "nereus.apiIsOpen" -}}
{{- if and .Values.controller.enabled .Values.api.existingSecret -}}true{{- end -}}
{{- end -}}
