"""Between the model and protobuf messages: what pods claim of devices, and the claims they hold."""

from hoss.model.devices import (
    Allocation,
    ClaimUse,
    ContainerRequests,
    DeviceId,
    DeviceResult,
    HeldClaim,
    PodClaims,
    RequestMapping,
)
from hoss.model.quantity import parse_quantity
from hoss.model.selectors import NodeSelector
from hoss.v1 import common_pb2 as pb
from hoss.wire.convert_selectors import node_term_from_proto, node_term_to_proto


def pod_claims_to_proto(claims: PodClaims) -> pb.PodClaims:
    return pb.PodClaims(
        pod=claims.pod,
        uid=claims.uid,
        uses=[
            pb.ClaimUse(claim=use.claim or "", from_template=use.from_template, not_needed=not use.needed)
            for use in claims.uses
        ],
        containers=[
            pb.ContainerRequests(
                name=container.name,
                position=container.position,
                requests=[
                    pb.ExtendedRequest(position=position, resource=resource, count=count)
                    for position, resource, count in container.requests
                ],
                initial=container.initial,
            )
            for container in claims.containers
        ],
    )


def pod_claims_from_proto(message: pb.PodClaims) -> PodClaims:
    return PodClaims(
        message.pod,
        message.uid,
        tuple(ClaimUse(use.claim or None, use.from_template, not use.not_needed) for use in message.uses),
        tuple(
            ContainerRequests(
                container.name,
                container.position,
                tuple((request.position, request.resource, request.count) for request in container.requests),
                container.initial,
            )
            for container in message.containers
        ),
    )


def held_claim_to_proto(held: HeldClaim) -> pb.HeldClaim:
    message = pb.HeldClaim(
        namespace=held.namespace,
        name=held.name,
        devices=[
            pb.HeldDevice(
                request=result.request,
                driver=result.id.driver,
                pool=result.id.pool,
                device=result.id.device,
                shared=result.shared,
                consumed=[pb.DeviceAmount(name=n, amount=q.canonical) for n, q in result.consumed],
                admin_access=result.admin_access,
                binding_conditions=result.binding_conditions,
                binding_failure_conditions=result.binding_failure_conditions,
            )
            for result in held.allocation.results
        ],
        mappings=[
            pb.RequestMapping(
                container=mapping.container,
                resource=mapping.resource,
                request=mapping.request,
                device_class=mapping.device_class,
            )
            for mapping in held.mappings
        ],
    )
    if held.allocation.nodes is not None:
        message.nodes.terms.extend(map(node_term_to_proto, held.allocation.nodes.terms))
        message.nodes.SetInParent()
    return message


def held_claim_from_proto(message: pb.HeldClaim) -> HeldClaim:
    """Raises InvalidInput for an amount that is no quantity."""
    results = tuple(
        DeviceResult(
            request=device.request,
            id=DeviceId(device.driver, device.pool, device.device),
            shared=device.shared,
            consumed=tuple((c.name, parse_quantity(c.amount)) for c in device.consumed),
            admin_access=device.admin_access,
            binding_conditions=tuple(device.binding_conditions),
            binding_failure_conditions=tuple(device.binding_failure_conditions),
        )
        for device in message.devices
    )
    terms = tuple(map(node_term_from_proto, message.nodes.terms))
    nodes = NodeSelector(terms) if message.HasField("nodes") else None
    mappings = tuple(
        RequestMapping(mapping.container, mapping.resource, mapping.request, mapping.device_class)
        for mapping in message.mappings
    )
    return HeldClaim(message.namespace, message.name, Allocation(results, nodes), mappings)
